# `make demo` and `make test` are all that a machine with Python 3.11 or newer
# needs: each fills .venv itself, once, and again when the requirements change.

PYTHON ?= python3
# arguments of pytest or of the demo: make test ARGS="-k kernels", make demo ARGS=--no-svc
ARGS ?=
# what `make torch` installs, e.g. TORCH=torch==2.13.0
TORCH ?= torch
# how many new tables `make fuzz` makes up for each of its tests
EXAMPLES ?= 200
# threads of each process of `make test`
THREADS ?= 1
# the CUDA version of `make test-gpu`: 12 or 13
CUDA ?= 12

BIN = .venv/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
TEST = SCIPY_ARRAY_API=1 $(BIN)/python -m pytest
# a process for each core, with THREADS threads in each: more than one share the cores
ON_ALL_CORES = OMP_NUM_THREADS=$(THREADS) $(TEST) -n auto

.PHONY: help demo test fuzz test-oldest test-gpu torch types lint format examples docs-check \
  docs linkcheck clean
.NOTPARALLEL:

help:
	@echo "make demo      compare classifiers on a table, and show what was chosen"
	@echo "make test      run the tests and the doctests; ARGS= goes to pytest"
	@echo "make fuzz      fit new messy tables at random; EXAMPLES=200 for each test"
	@echo "make torch     install PyTorch, so that its tests run instead of being skipped"
	@echo "make test-oldest  run the tests with the oldest supported dependencies"
	@echo "make test-gpu  run the tests that need a CUDA device; CUDA=12 or 13"
	@echo "make types     check the type hints of what is public"
	@echo "make linkcheck  check the links of the documentation"
	@echo "make lint      check style and formatting"
	@echo "make format    mend style and formatting"
	@echo "make examples  run every example once"
	@echo "make docs-check  build the documentation without the gallery's pictures"
	@echo "make docs      build the documentation in docs/_build/html"
	@echo "make clean     remove builds and caches, but not .venv"

demo: .venv/.stamp-plot
	$(BIN)/python examples/demo.py $(ARGS)

test: .venv/.stamp-test
	$(ON_ALL_CORES) $(ARGS)

fuzz: .venv/.stamp-test
	EIGENKERN_FUZZ_EXAMPLES=$(EXAMPLES) $(ON_ALL_CORES) tests/test_fuzz.py $(ARGS)

test-gpu: .venv/.stamp-test .venv/.stamp-cuda$(CUDA)
	$(TEST) -m gpu $(ARGS)

test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c .ci/oldest.txt -e ".[test]"
	SCIPY_ARRAY_API=1 .venv-oldest/bin/python -m pytest -n auto $(ARGS)

torch: .venv/.stamp-test
	$(PIP) "$(TORCH)"

types: .venv/.stamp-test
	$(BIN)/python -m mypy .ci/typed.py

lint: .venv/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/.stamp-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

examples: .venv/.stamp-test
	$(BIN)/python examples/demo.py > /dev/null
	@for file in examples/*/plot_*.py; do \
	  echo "$$file"; MPLBACKEND=agg $(BIN)/python -W error -W ignore:FigureCanvasAgg:UserWarning $$file > /dev/null || exit 1; \
	done

docs-check: .venv/.stamp-docs
	$(BIN)/python -m sphinx -W -q -D plot_gallery=0 -b html docs docs/_build/check \
	  -D suppress_warnings=image.not_readable,ref.ref,ref.term

docs: .venv/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# asks the network; the links inside are checked by every build
linkcheck: .venv/.stamp-docs
	$(BIN)/python -m sphinx -q -D plot_gallery=0 -b linkcheck docs docs/_build/linkcheck

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	rm -rf docs/_build docs/auto_examples docs/generated docs/sg_execution_times.rst
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +

# .stamp-NAME: the package is installed in .venv with its extra NAME
.venv/.stamp-%: pyproject.toml setup.cfg | .venv/.stamp-venv
	@echo "Installing eigenkern[$*] into .venv (once) ..."
	@$(PIP) -e ".[$*]"
	@touch $@

.venv/.stamp-venv:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	  echo "eigenkern needs Python 3.11 or newer, and '$(PYTHON)' is not." >&2; \
	  echo "Name another one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@

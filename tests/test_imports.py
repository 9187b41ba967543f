"""Imports: nothing heavy, nothing private, and only from lower layers."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import eigenkern

PACKAGE = Path(eigenkern.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# From the bottom up. A module imports from earlier lines and from its own folder.
LAYERS = [
    {"arrays"},
    {"rows"},
    {"kernels", "losses"},
    {"operators", "preconditioners"},
    {"centers"},
    {"methods"},
    {"plan"},
    {"problems"},
    {"fitting"},
    {"estimators"},
    {"display", "estimates", "inspection"},
    {"__init__"},
]


def layer(module):
    """Return the position in LAYERS of a module's folder, or of a top-level file."""
    name = module.split(".")[0]
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports(path):
    """Yield (level, module, names) of all imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield node.level, node.module or "", names
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


@cache
def own_imports(module, path):
    """Return the package's modules that a module imports."""
    folder = module.split(".")[:-1]
    found = set()
    for level, name, names in imports(path):
        if level == 0:
            continue
        base = folder[: len(folder) - (level - 1)] + [p for p in name.split(".") if p]
        for child in names:  # a module, a folder, or a name in one of them
            paths = (
                [*base, child],
                [*base, child, "__init__"],
                base,
                [*base, "__init__"],
            )
            found.add(next(m for m in map(".".join, paths) if m in MODULES))
    return found


def reached(module, seen=()):
    """Return all modules that a module imports, directly or indirectly."""
    for other in own_imports(module, MODULES[module]) - set(seen):
        seen = reached(other, {*seen, other})
    return set(seen)


def test_the_graph_is_read():
    assert own_imports("arrays.linalg", MODULES["arrays.linalg"]) == {
        "arrays.array",
        "arrays.machine",
        "arrays.threads",
    }
    solver = own_imports("methods.epochs", MODULES["methods.epochs"])
    assert {"arrays.array", "methods.guard"} <= solver
    own = own_imports("__init__", MODULES["__init__"])
    assert {"kernels.__init__", "estimators.eigenpro"} <= own


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    folder = module.rpartition(".")[0]
    for other in own_imports(module, MODULES[module]):
        same = folder and other.rpartition(".")[0] == folder
        below = layer(other) < layer(module)
        assert same or below, f"{module} imports {other}"
    assert module not in reached(module), "a circle"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_private_is_imported(module):
    for level, name, names in imports(MODULES[module]):
        if level == 0 and name.split(".")[0] in {"sklearn", "numpy", "scipy"}:
            parts = [*name.split("."), *names]
            assert not [p for p in parts if p.startswith("_")], f"{name}: {names}"
        if level:
            assert not [p for p in names if p.startswith("_")], f"{name}: {names}"


def test_only_estimators_know_scikit_learn():
    # `centers` calls its k-means.
    knowing = {
        module.split(".")[0]
        for module, path in MODULES.items()
        for level, name, _ in imports(path)
        if level == 0 and name.split(".")[0] == "sklearn"
    }
    assert knowing == {"estimators", "fitting", "centers"}


HEAVY = {"cupy", "torch", "dask", "matplotlib", "pandas", "polars", "rich"}


def test_import_is_light():
    # scikit-learn itself may import some of them where they are installed.
    code = (
        "import sys, sklearn.callback, sklearn.model_selection;"
        "before = set(sys.modules);"
        "import eigenkern; print(*set(sys.modules) - before)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "eigenkern" in loaded
    assert not loaded & HEAVY


def test_public_names():
    assert sorted(eigenkern.__all__) == eigenkern.__all__
    for name in eigenkern.__all__:
        assert hasattr(eigenkern, name)

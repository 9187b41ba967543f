"""The gallery: every example is found, checks its claim, and runs alone."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*/plot_*.py"))
LABEL = re.compile(r"sphx_glr_auto_examples_([a-z]+)_(plot_\w+\.py)")
PAGE = re.compile(
    r"auto_examples/(?!index)(?:([a-z]+)/)?(?:images/sphx_glr_)?(plot_\w+)"
)


def test_every_example_is_in_a_section():
    sections = {file.parent for file in EXAMPLES}
    assert len(EXAMPLES) >= 12
    assert all((section / "GALLERY_HEADER.rst").is_file() for section in sections)
    assert set((ROOT / "examples").rglob("plot_*.py")) == set(EXAMPLES)
    order = re.search(r"SECTIONS = \((.+)\)", (ROOT / "docs/conf.py").read_text())
    assert {section.name for section in sections} == set(re.findall(r"\w+", order[1]))
    assert "examples/*/plot_*.py" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_checks_its_claim_and_needs_no_other_file(file):
    code = file.read_text(encoding="utf-8")
    assert re.search(r"^ *assert ", code, re.MULTILINE)
    assert "__file__" not in code
    assert "EIGENKERN_DATA" not in code


def test_links_to_examples_lead_somewhere():
    # Sphinx ignores missing references, so it would not notice a stale one.
    texts = [ROOT / "README.rst", *EXAMPLES]
    texts += (ROOT / "docs").glob("*.rst")
    texts += (ROOT / "docs").glob("us*/*.rst")
    texts += (ROOT / "eigenkern").rglob("*.py")
    for text in texts:
        words = text.read_text(encoding="utf-8")
        for section, name in LABEL.findall(words):
            assert ROOT / "examples" / section / name in EXAMPLES, text
        assert "sphx_glr_auto_examples_plot" not in words, text
        for section, name in PAGE.findall(words):
            name = re.sub(r"_\d{3}$", "", name)
            assert ROOT / "examples" / section / f"{name}.py" in EXAMPLES, text


def test_a_notebook_runs_in_an_empty_folder(tmp_path, monkeypatch):
    pytest.importorskip("sphinx_gallery")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
    from sphinx_gallery.notebook import jupyter_notebook
    from sphinx_gallery.py_source_parser import split_code_and_text_blocks

    file = ROOT / "examples" / "start" / "plot_quickstart.py"
    blocks = split_code_and_text_blocks(file)[1]
    notebook = jupyter_notebook(blocks, DEFAULT_GALLERY_CONF, str(tmp_path))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    pyplot.switch_backend("agg")
    exec("\n".join("".join(cell["source"]) for cell in cells), {})
    pyplot.close("all")
    assert list(tmp_path.iterdir()) == []


def test_the_extra_docs_has_what_examples_import():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    installed = [*project["dependencies"], *extras["docs"]]
    known = {re.match(r"[\w-]+", text)[0] for text in installed}
    known |= {"eigenkern", "sklearn", *sys.stdlib_module_names}
    for file in EXAMPLES:
        code = file.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(code)))
        names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        for node in nodes:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
        used = {name.partition(".")[0] for name in names}
        if "as_frame=True" in code:
            used.add("pandas")
        assert used <= known, file.name

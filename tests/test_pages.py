"""The Python code of the pages runs, each page from top to bottom as one program."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDE = [*DOCS.glob("using/*.rst"), *DOCS.glob("user_guide/*.rst")]
PAGES = [ROOT / "README.rst", DOCS / "index.rst", *sorted(GUIDE)]

# A block of code with its lines, and the comment ".. not run: why" before it, if any.
BLOCK = re.compile(
    r"(?P<why>^[ ]*\.\. not run: .+\n\s*)?"
    r"^(?P<indent>[ ]*)\.\. code-block:: python\n"
    r"(?P<code>(?:\n|(?P=indent)[ ]+.*\n?)+)",
    re.MULTILINE,
)


def program(page):
    """Return the code of a page, each line at its line number in the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        if block["why"]:
            continue
        first = text.count("\n", 0, block.start("code"))
        for i, line in enumerate(textwrap.dedent(block["code"]).splitlines()):
            lines[first + i] = line
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_fits_a_page(page):
    """A page of 1280 pixels shows 72 columns of code."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = textwrap.dedent(block["code"]).splitlines()
        assert [line for line in lines if len(line) > 72] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    code = program(page)
    assert code.strip() or page.name == "index.rst"
    exec(compile(code, page, "exec"), {"__name__": "page"})

"""Numbers that pages quote are in ``benchmarks/results``, digit by digit.

A comment ``.. from results/FILE.txt`` (or several, with commas) applies to the block
after it: a paragraph, a list or a table.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"
THEORY = sorted((DOCS / "user_guide").glob("*.rst"))
PAGES = [ROOT / "README.rst", *sorted((DOCS / "using").glob("*.rst")), *THEORY]

COMMENT = re.compile(r" *\.\. from (results/\S+(?:,\s+results/\S+)*)\s*$")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d)")
# Text without quoted numbers: literals and roles, options of directives, references,
# and names that contain a number.
NOT_QUOTED = re.compile(
    r"^ *:[\w-]+:.*$|:?[\w:-]*:`[^`]*`|``[^`]*``|\[\d+\]_"
    r"|EigenPro \d(?:, \d)*(?: and \d)?",
    re.MULTILINE,
)
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def blocks(text):
    """Yield (line number, text) of blocks, which end before a line indented no more."""
    lines = text.splitlines()
    start = None
    for i, line in enumerate([*lines, ""]):
        if start is None and line.strip():
            start = i
        if start is None or line.strip():
            continue
        following = next((one for one in lines[i:] if one.strip()), "")
        if _indent(following) <= _indent(lines[start]):
            yield start + 1, "\n".join(lines[start:i])
            start = None


def _indent(line):
    return len(line) - len(line.lstrip())


def quoted(block):
    """Return the numbers of a block of a page."""
    text = NOT_QUOTED.sub(" ", block)
    text = re.sub(r"(?<=\d) (?=\d{3}\b)", "", text)  # 20 000
    return NUMBER.findall(text)


def unknown(block, results):
    """Return the numbers of a block that are in none of the results."""
    known = set(NUMBER.findall(DATE.sub("", "\n".join(results))))
    return [number for number in quoted(block) if number not in known]


def attributed(page):
    """Yield (line number, block, file names) of a page."""
    names = []
    for line, block in blocks(page.read_text(encoding="utf-8")):
        comment = COMMENT.match(" ".join(block.split()))
        if comment is None:
            yield line, block, names
        names = [] if comment is None else re.findall(r"results/[\w.]+", comment[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_numbers_stand_in_the_results(page):
    wrong = []
    for line, block, names in attributed(page):
        if names:
            results = [(BENCHMARKS / name).read_text("utf-8") for name in names]
            found = unknown(block, results)
            wrong += [f"line {line}: {number} not in {names}" for number in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", THEORY, ids=lambda page: page.stem)
def test_tables_of_decimals_say_where_they_are_from(page):
    missing = [
        f"line {line}: put '.. from results/FILE' before the table"
        for line, block, names in attributed(page)
        if re.match(r" *(===|\.\. list-table::)", block)
        and any("." in number for number in quoted(block))
        and not names
    ]
    assert not missing, "\n".join(missing)


def test_a_wrong_digit_is_found():
    result = "2026-11-22; NumPy 2.4.6\n mnist 20000   1.89 %  20 (  7)  3.1e-02  5.0 s"
    assert (
        unknown("On 20 000 rows EigenPro 2 has 1.89 %, 3.1e-02 [3]_.", [result]) == []
    )
    table = "=====  ====\nmnist  1.88\n=====  ====="
    assert unknown(table, [result]) == ["1.88"]
    assert unknown("In 22 or 2.4 s, ``alpha=1``", [result]) == ["22", "2.4"]
    parts = ["A title\n=====", ".. from results/a.txt", "1.5\n\n  more", "1.6"]
    text = "\n\n".join(parts) + "\n"
    assert [block for _, block in blocks(text)] == parts

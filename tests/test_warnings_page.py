"""The page on warnings contains every warning of the package."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = " ".join((ROOT / "docs" / "using" / "warnings.rst").read_text().split())


def warnings_of(path):
    """Yield the fixed parts of every warning message in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn_user":
            constants = [
                part.value
                for part in ast.walk(node.args[0])
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            yield node.lineno, constants


CASES = [
    pytest.param(constants, id=f"{path.stem}:{line}")
    for path in sorted((ROOT / "eigenkern").rglob("*.py"))
    for line, constants in warnings_of(path)
]


def test_there_are_warnings():
    assert len(CASES) > 10


@pytest.mark.parametrize("constants", CASES)
def test_page_has_the_warning(constants):
    """The page quotes 20 characters of it, or a shorter part as a whole."""
    parts = [" ".join(text.split()) for text in constants]
    quoted = [part[:20].strip() for part in parts if len(part) > 12]
    assert any(text in PAGE for text in quoted), parts

"""Facts about the package that appear in several places agree."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import eigenkern

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions(requirements, sign):
    """Return {package: version} of requirements such as "numpy>=2.1"."""
    pairs = [re.sub(r"\s", "", line).split(sign) for line in requirements]
    return dict(pairs)


def test_the_oldest_dependencies_are_those_of_the_project():
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    oldest = versions([line for line in lines if line and line[0] != "#"], "==")
    needed = versions(PROJECT["dependencies"], ">=")
    assert set(oldest) == {*needed, "pytest"}
    for name, version in needed.items():
        assert f"{oldest[name]}.".startswith(f"{version}.")


def test_the_conda_recipe_is_that_of_the_project():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == eigenkern.__version__
    python, *run = recipe["requirements"]["run"]
    assert python == f"python {PROJECT['requires-python']}"
    assert versions(run, ">=") == versions(PROJECT["dependencies"], ">=")


def test_the_changelog_begins_with_this_version():
    lines = (ROOT / "CHANGELOG.rst").read_text().splitlines()
    assert lines[3].split()[0] == eigenkern.__version__


def test_the_names_that_are_loaded_when_asked_for_are_those_that_are_typed():
    source = (ROOT / "eigenkern" / "__init__.py").read_text()
    typed = set(re.findall(r"\b(\w+) as \1\b", source))
    assert typed == set(eigenkern.__all__)
    assert set(eigenkern.__all__) <= set(dir(eigenkern))


def test_import_loads_no_estimator():
    code = "import sys, eigenkern; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    modules = done.stdout.split()
    assert "eigenkern" in modules
    assert not [m for m in modules if m.startswith(("sklearn", "eigenkern."))]


def test_modules_are_there_without_being_imported():
    code = "import eigenkern as e; e.centers.uniform, e.kernels.Linear, e.inspection"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'eigenkern' has no attribute 'no'"):
        eigenkern.no  # noqa: B018

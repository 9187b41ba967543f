"""The table of the estimators' abilities says what they can do."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

import eigenkern

PAGE = (Path(__file__).parents[1] / "docs" / "using" / "choose.rst").read_text()
NAMES = sorted(
    name
    for name in eigenkern.__all__
    if re.search("(Regressor|Classifier|Features|PCA|Detector)$", name)
)


def rows():
    """Return the cells of the second table, by the names of the classes."""
    table = re.search(r"\* - Classes\n     - ``partial_fit``.*?\n\n", PAGE, re.DOTALL)
    lines = re.split(r"\n   \* - ", table[0])[1:]
    cells = [re.split(r"\n     - ", line.strip()) for line in lines]
    return {name.strip("`"): rest for name, *rest in cells}


def test_defaults_that_differ():
    table = PAGE[PAGE.index("Defaults that differ") :].split("How long a fit")[0]
    listed = {}
    for row in re.split(r"\n   \* - ", table)[2:]:
        parameter, default, classes, _ = re.split(r"\n     - ", row)
        for name in re.findall(r"``(\w+)\*?``", classes):
            listed[parameter.strip("`"), name] = ast.literal_eval(default.strip("`"))
    found = {}
    for name in NAMES:
        if not name.endswith("Classifier"):
            signature = inspect.signature(getattr(eigenkern, name))
            for parameter, value in signature.parameters.items():
                family = name.removesuffix("Regressor")
                found.setdefault(parameter, {})[family] = value.default
    assert listed == {
        (parameter, family): value
        for parameter, values in found.items()
        if len(set(values.values())) > 1
        for family, value in values.items()
    }


def test_table_of_all_classes():
    for name in NAMES:
        assert f":class:`~eigenkern.{name}`" in PAGE


def cases():
    """Yield names of classes, parameters, and rows of the table."""
    for name in NAMES:
        row = re.sub("(Regressor|Classifier)$", "*", name)
        if row == "EigenPro*":
            yield name, {}, "EigenPro*()"
            yield name, {"n_centers": 50}, "EigenPro*(n_centers=p)"
        else:
            yield name, {}, row


@pytest.mark.parametrize(("name", "parameters", "row"), list(cases()))
def test_cells(name, parameters, row):
    estimator = getattr(eigenkern, name)(**parameters)
    pieces, sparse, weights, probabilities, files = rows()[row]
    assert hasattr(estimator, "partial_fit") == pieces.startswith("yes")
    assert get_tags(estimator).input_tags.sparse == sparse.startswith("yes")
    assert has_fit_parameter(estimator, "sample_weight") == weights.startswith("yes")
    if name.endswith("Classifier"):
        assert hasattr(estimator, "predict_proba") == probabilities.startswith("yes")
    elif not name.endswith("Regressor"):
        assert probabilities == "no"
    in_memory = getattr(estimator, "_in_memory_unless", None)
    assert (in_memory is None) == files.startswith("yes")

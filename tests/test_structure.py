"""The structure of the package: class levels, constants, paths of X."""

import ast
import importlib
import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import eigenkern
from eigenkern import EigenProClassifier, EigenProRegressor

PACKAGE = Path(eigenkern.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = [
    ".".join(("eigenkern", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in FILES
]


def nodes(tree, kinds):
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def own_classes():
    for name in MODULES:
        module = importlib.import_module(name.removesuffix(".__init__"))
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__.startswith("eigenkern"):
                yield cls


def n_levels(cls):
    """Return the levels of own base classes of a class, except mixins of targets."""
    own = [
        base
        for base in cls.__bases__
        if base.__module__.startswith("eigenkern")
        and base.__module__ != "eigenkern.estimators.targets"
    ]
    return max((1 + n_levels(base) for base in own), default=0)


def test_no_class_stands_on_a_tower():
    classes = set(own_classes())
    assert EigenProRegressor in classes and n_levels(EigenProRegressor) == 2
    assert not [cls.__name__ for cls in classes if n_levels(cls) > 2]


def test_no_two_constants_share_a_name():
    places = defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in [n for t in targets for n in nodes(t, ast.Name)]:
                if name.id.isupper():
                    places[name.id].add(str(path.relative_to(PACKAGE)))
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert not shared


def documented_path(heading):
    """Return the functions in CONTRIBUTING's numbered list under a heading."""
    text = (PACKAGE.parent / "CONTRIBUTING.rst").read_text()
    section = text.split(f"\n{heading}\n", 1)[1]
    listed = re.match(r"\W*\n(?:.*\n)*?((?:\d+\. .*\n(?:   .*\n)*)+)", section)[1]
    return re.findall(r"^\d+\. ``([\w.<>]+)``", listed, re.MULTILINE)


def calls_of(function):
    """Return the names of the package's functions that a call calls, in order.

    Names of nested functions include those of the outer ones.
    """
    called = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            called.setdefault(code.co_qualname.replace(".<locals>", ""))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(called)


EPOCHS = {"algorithm": "eigenpro2", "alpha": 1e-3, "cache_size": 100}


@pytest.mark.parametrize(
    ("heading", "options", "method", "most"),
    [
        ("From X to ``dual_coef_``", {}, "fit", 25),
        ("By epochs", EPOCHS, "fit", 12),
        ("And back", {}, "predict", 10),
        ("And back", EPOCHS, "predict", 10),
    ],
)
def test_x_takes_the_documented_path(heading, options, method, most, regression):
    X, y, *_ = regression
    model = EigenProRegressor(**options, random_state=0)
    called = calls_of(lambda: model.fit(X, y))
    if method == "predict":
        called = calls_of(lambda: model.predict(X))
    path = documented_path(heading)
    assert [name for name in called if name in path] == path
    assert 5 < len(path) <= most


def test_both_paths_begin_and_end_alike(regression):
    X, y, *_ = regression
    model = EigenProRegressor(algorithm="eigenpro2", random_state=0)
    called = calls_of(lambda: model.fit(X, y))
    path = documented_path("From X to ``dual_coef_``")
    shared = [*path[:14], *path[23:]]
    assert shared[-2:] == ["KernelProblem.fitted_attributes", "publish"]
    assert [name for name in called if name in shared] == shared


@pytest.mark.parametrize(
    "options", [{"algorithm": "eigenpro2"}, {"algorithm": "eigenpro4", "n_centers": 20}]
)
def test_spared_rows_take_the_documented_path(options, three_classes):
    model = EigenProClassifier(**options, max_iter=4, random_state=0)
    called = calls_of(lambda: model.fit(*three_classes))
    path = documented_path("Rows that are spared")
    found = [name.replace("Learner.gone_on", "gone_on") for name in called]
    assert [name for name in found if name in path] == path

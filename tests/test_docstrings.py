"""Public docstrings, and descriptions of parameters that estimators share."""

import inspect
import re

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import eigenkern
from eigenkern import centers, inspection, kernels

PUBLIC = {name: getattr(eigenkern, name) for name in eigenkern.__all__}
ESTIMATORS = {
    name: value for name, value in PUBLIC.items() if hasattr(value, "get_params")
}
# Checks of numpydoc that we do not follow, and why.
NOT_CHECKED = {
    "ES01": "the first line says it where it can",
    "PR07": "X and y need no words beside their shapes",
    "PR08": "descriptions begin with the symbol of the paper",
    "RT02": "a result has a name, which its shape refers to",
    "RT03": "a result whose first line and name say it all",
}
NOT_CHECKED_OF_METHODS = NOT_CHECKED | {
    "EX01": "the example stands in the class",
    "SA01": "see the class",
    # Those that scikit-learn adds:
    "RT01": "",
    "PR01": "",
}


def objects():
    """Yield the name of each public object, and the checks that it may fail."""
    for name, value in PUBLIC.items():
        if not inspect.ismodule(value):
            yield f"eigenkern.{name}", NOT_CHECKED
        if inspect.isclass(value):
            for method in dir(value):
                function = getattr(value, method)
                module = getattr(function, "__module__", None) or ""
                if method[0] != "_" and module.startswith("eigenkern"):
                    yield f"eigenkern.{name}.{method}", NOT_CHECKED_OF_METHODS
    for name in kernels.__all__:
        yield f"eigenkern.kernels.{name}", NOT_CHECKED_OF_METHODS
    for name in inspection.__all__:
        yield f"eigenkern.inspection.{name}", NOT_CHECKED
    for name in ("choose", *(m for m in centers.METHODS)):
        yield f"eigenkern.centers.{name}", NOT_CHECKED_OF_METHODS


@pytest.mark.parametrize("name, not_checked", list(objects()))
def test_docstrings_follow_numpydoc(name, not_checked):
    errors = dict(validate(name)["errors"])
    assert {code: errors[code] for code in errors if code not in not_checked} == {}


def documented(cls):
    """Return {parameter: (default, description)} of a docstring."""
    texts = {}
    for parameter in NumpyDocString(inspect.getdoc(cls))["Parameters"]:
        for name in parameter.name.split(", "):
            texts[name] = parameter.type, " ".join(parameter.desc)
    return texts


@pytest.mark.parametrize("name", ESTIMATORS)
def test_docstrings_name_the_parameters_and_their_defaults(name):
    signature = inspect.signature(ESTIMATORS[name]).parameters
    texts = documented(ESTIMATORS[name])
    assert list(signature) == list(texts)
    for parameter, value in signature.items():
        default = texts[parameter][0].partition("default=")[2].replace('"', "'")
        if isinstance(value.default, float):
            assert float(default) == value.default
        else:
            assert default == repr(value.default)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_parameters_for_experts_come_last(name):
    doc = NumpyDocString(inspect.getdoc(ESTIMATORS[name]))
    text = " ".join(doc["Extended Summary"])
    experts = re.search(r"The parameters from `(\w+)` on are for experts", text)
    names = list(inspect.signature(ESTIMATORS[name]).parameters)
    if len(names) > 15 and "Nystrom" not in name:
        assert names[names.index(experts[1]) - 1] == "verbose"
    else:
        assert experts is None and names[-1] in ("verbose", "random_state")


# Parameters that a classifier describes differently from its regressor.
OF_CLASSIFIERS = {
    "estimator": "a classifier in place of a regressor",
    "validation_fraction": "the same fraction of every class is held out",
    "loss": "losses of labels are not those of numbers",
}


@pytest.mark.parametrize(
    "family", [name[:-9] for name in ESTIMATORS if name.endswith("Regressor")]
)
def test_classifiers_say_what_regressors_say(family):
    one, other = (ESTIMATORS[family + kind] for kind in ("Regressor", "Classifier"))
    one_says, other_says = documented(one), documented(other)
    assert set(other_says) - set(one_says) <= {"class_weight", "loss"}
    assert set(one_says) - set(other_says) <= {"epsilon", "quantile"}
    for name in set(one_says) & set(other_says) - set(OF_CLASSIFIERS):
        assert one_says[name] == other_says[name], name


# Parameters that families share by name and describe differently: numbers of defaults
# and of descriptions (or types), and the reason.
SHARED = {
    "algorithm": (2, 2, "of EigenPro and of random features"),
    "alpha": (1, 5, "of rows, features or weights; a path in Nystrom; half in DSG"),
    "batch_size": (1, 3, "what fills the machine depends on the algorithm"),
    "bandwidth": (2, 3, "distinct rows for exact solvers; features have no targets"),
    "cache_size": (1, 4, "what is kept: kernel matrix, factor, or values"),
    "centers": (1, 3, "features know two methods only; EigenPro refers to a page"),
    "class_weight": (1, 3, "of pieces of the data"),
    "damping": (2, 2, "the paper's values, of kernels and of random features"),
    "device": (1, 3, "kernel matrices may be on several; features come back"),
    "kernel": (2, 5, "random features need a spectral law; features use gaussian"),
    "max_iter": (3, 4, "epochs, iterations or steps"),
    "n_centers": (5, 6, "EigenPro takes all rows, features need some number"),
    "n_components": (3, 4, "eigenvectors, features, components: each says so"),
    "random_state": (1, 9, "what is random"),
    "selection": (1, 2, "leaving one out is exact for ridge regression only"),
    "step_size": (1, 4, "of which iteration"),
    "subsample_size": (1, 2, "features are fewer than rows"),
    "tol": (3, 3, "of a loss, a residual, or a validation error"),
    "validation_fraction": (2, 3, "0.2 where the model is refitted to all rows"),
    "verbose": (1, 4, "an epoch, a round or a part of the work; not in partial_fit"),
    "warm_start": (1, 3, "what has to be the same"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_descriptions_say_first_what_a_parameter_does(name):
    symbol = re.compile(r"([a-zA-Z]|lambda|sigma|eta|gamma|tau)([,.] | and )")
    for parameter, (_, text) in documented(ESTIMATORS[name]).items():
        assert not symbol.match(text), f"{parameter}: {text}"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_see_also_leads_to_other_families(name):
    family = re.sub("Regressor|Classifier", "", name)
    entries = NumpyDocString(inspect.getdoc(ESTIMATORS[name]))["See Also"]
    others = {entry[0][0][0] for entry in entries} & set(ESTIMATORS)
    assert any(not other.startswith(family) for other in others)


def test_shared_parameters_say_the_same():
    defaults, texts = {}, {}
    for name, cls in ESTIMATORS.items():
        if name.endswith("Classifier"):  # compared with the regressor, but for weights
            says = documented(cls)
            if "class_weight" in says:
                texts.setdefault("class_weight", set()).add(says["class_weight"])
                defaults.setdefault("class_weight", set()).add(None)
            continue
        for parameter, value in inspect.signature(cls).parameters.items():
            defaults.setdefault(parameter, set()).add(repr(value.default))
            texts.setdefault(parameter, set()).add(documented(cls)[parameter])
    found = {name: (len(defaults[name]), len(texts[name])) for name in texts}
    expected = {name: counts[:2] for name, counts in SHARED.items()}
    assert found == dict.fromkeys(found, (1, 1)) | expected

"""What is imported: nothing heavy, nothing private, and only from above."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import eigenkern

PACKAGE = Path(eigenkern.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# A module imports only modules of the lines before its own.
LAYERS = [
    {"_array"},
    {"_linalg", "losses"},
    {"kernels"},
    {"_operator"},
    {"_sharded"},
    {"_fourier"},
    {"_dask"},
    {"centers"},
    {"preconditioners"},
    {"_tuning"},
    {"solvers.guard"},
    {"solvers.*"},
    {"_problem"},
    {"_projection"},
    {"_general"},
    {"_systems"},
    {"_base"},
    {"_eigenpro", "_nystrom", "_falkon", "_doubly_stochastic", "_features"},
    {"_linear_eigenpro"},
    {"display", "_show_versions"},
    {"__init__"},
]


def layer(module):
    solver = module.startswith("solvers") and module != "solvers.guard"
    name = "solvers.*" if solver else module
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports(path):
    """Yield (level, module, names) of the imports that run on import of a module."""
    tree = ast.parse(path.read_text())
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield id(node) in lazy, node.level, node.module or "", names
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield id(node) in lazy, 0, alias.name, []


def own_imports(module, path):
    """Return the package's modules that a module imports as it is imported."""
    folder = module.split(".")[:-1]
    found = set()
    for lazy, level, name, names in imports(path):
        if level == 0 or lazy:
            continue
        base = folder[: len(folder) - (level - 1)] + [p for p in name.split(".") if p]
        for child in names:
            candidates = [".".join([*base, child]), ".".join(base)]
            found |= {c for c in candidates if c in MODULES}
    return found


def test_the_graph_is_read():
    assert own_imports("_linalg", MODULES["_linalg"]) == {"_array"}
    solver = own_imports("solvers.eigenpro", MODULES["solvers.eigenpro"])
    assert solver == {"_array", "solvers.guard"}
    assert {"kernels", "_eigenpro"} <= own_imports("__init__", MODULES["__init__"])


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    for other in own_imports(module, MODULES[module]):
        assert layer(other) < layer(module), f"{module} imports {other}"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_private_is_imported(module):
    for _, level, name, names in imports(MODULES[module]):
        if level == 0 and name.split(".")[0] in {"sklearn", "numpy", "scipy"}:
            parts = [*name.split("."), *names]
            assert not [p for p in parts if p.startswith("_")], f"{name}: {names}"


def test_only_base_knows_scikit_learn():
    # `centers` calls its k-means.
    knowing = {
        module
        for module, path in MODULES.items()
        for _, level, name, _ in imports(path)
        if level == 0 and name.split(".")[0] == "sklearn"
    }
    assert knowing - {"_show_versions", "centers"} == {"_base"}


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

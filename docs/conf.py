"""Configuration of the documentation; see ``make docs``."""

import eigenkern

project = "eigenkern"
author = "The eigenkern developers"
copyright = "2026, The eigenkern developers"
version = release = eigenkern.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "literal"

# numpydoc renders the sections of a docstring; the template lists the methods.
numpydoc_show_class_members = False

# Methods inherited from scikit-learn refer to labels of its own documentation.
suppress_warnings = ["ref.ref", "ref.term"]

# Examples named plot_* run when the documentation is built.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"demo\.py$",
    "download_all_examples": False,
    "show_memory": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"eigenkern {release}"
html_show_sourcelink = False

"""Configuration of the documentation; see ``make docs``."""

import ast
import sys
from pathlib import Path

import eigenkern

sys.path.insert(0, str(Path(__file__).parent))  # mathml.py

project = "eigenkern"
author = "The eigenkern developers"
copyright = "2026, The eigenkern developers"
version = release = eigenkern.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "literal"

# Docstrings say more of a type than the hints.
autodoc_typehints = "none"

# numpydoc renders the sections of a docstring; the template lists the methods.
numpydoc_show_class_members = False

# Methods inherited from scikit-learn refer to labels of its own documentation.
suppress_warnings = ["ref.ref", "ref.term"]

# Examples named plot_* run when the documentation is built. The page of a class
# shows those that use it.
SECTIONS = ("start", "tables", "tune", "uncertainty", "large", "inside")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "subsection_order": [f"../examples/{section}" for section in SECTIONS],
    "doc_module": ("eigenkern",),
    "backreferences_dir": "generated/backreferences",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"demo\.py$",
    "download_all_examples": False,
    "show_memory": False,
}

# For the template of classes: those that no example imports get no heading.
EXAMPLES = Path(__file__).parents[1] / "examples"
autosummary_context = {
    "names_in_examples": sorted(
        {
            alias.name
            for file in EXAMPLES.glob("*/plot_*.py")
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module.startswith("eigenkern")
            for alias in node.names
        }
    )
}

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "header_links_before_dropdown": 6,
    # The contents of a page, but for those of the gallery, whose code is wider.
    "secondary_sidebar_items": {
        pages: ["page-toc"]
        for pages in ("using/*", "user_guide/*", "generated/*", "changelog")
    },
}
html_math_renderer = "mathml"
html_static_path, html_css_files = ["_static"], ["pages.css"]
html_title = f"eigenkern {release}"
html_show_sourcelink = False

"""How the documentation is built: `make docs`. Nothing on a page is asked of a network."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(_ROOT), str(Path(__file__).parent / "_ext")]

project = "nope-interp"
author = "The nope-interp authors"
copyright = "the nope-interp authors, MIT licence"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "generated",
    "long_inputs",
    "gallery",
]
exclude_patterns = ["_ext", "_static", "generated/gallery"]
# The gallery's pages stand beside the site's own.
(Path(__file__).parent / "generated" / "gallery").mkdir(parents=True, exist_ok=True)
html_extra_path = ["generated/gallery"]
nitpicky = True
# Types that signatures name, and that no page describes.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 3

# Every cell runs at every build, and one that fails ends it. A short build runs none.
nb_execution_mode = os.environ.get("NOPE_INTERP_DOCS_CELLS", "force")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
# Warnings of notebooks, such as of a missing widget, tell a reader nothing.
nb_output_stderr = "remove"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # they would come from a network

autodoc_typehints = "none"
autodoc_member_order = "bysource"
# scikit-learn gives these to every estimator, and they mean nothing here.
_requests = ("set_fit_request", "set_partial_fit_request", "set_score_request")
autodoc_default_options = {"exclude-members": ",".join(_requests)}
napoleon_google_docstring = True
napoleon_use_rtype = False
default_role = "code"

html_theme = "furo"
html_title = "nope-interp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "

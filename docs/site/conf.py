"""The documentation as a site: `make docs` builds it, without network, and any warning fails the build."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(HERE), str(REPOSITORY)]

project = "torchnan"
copyright = "the torchnan authors, BSD-3-Clause"
release = re.search(r"^project\(torchnan VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text(), re.M)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "source_pages",
    "without_network",
]
exclude_patterns = ["site"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"  # copies only the commands of a console

autodoc_mock_imports = ["lightning", "orjson", "safetensors", "scipy", "transformers"]  # not needed to read docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text describes the types of arguments
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore_regex = [
    (r"py:(class|exc)", r"(?!torchnan).*"),  # from other packages, and words in the place of a type
    (r"py:class", r"torchnan\.recovery\.step\..*"),  # types of attributes that are internal
    (r"py:data", r".*"),
]

html_theme = "furo"
html_title = f"torchnan {release}"
html_copy_source = False
html_show_sphinx = False

"""Sphinx for this repository: `make docs` builds build/docs from the same Markdown that a forge shows.

The source directory is the repository itself, so that links between README.md, docs/ and the other folders
lead to the same files here and there; what is not Markdown is offered for download.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
# The building process is no rank of anything: importing mpi4py shall not start MPI.
os.environ["MPI4PY_RC_INITIALIZE"] = "false"

import hpccoll  # noqa: E402

project = "hpccoll"
author = copyright = "the hpccoll developers"
version = release = hpccoll.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**",
    "examples/README.md",
    "slurm/README.md",
    "benchmarks/results/*.md",
]
# Folders that hold no pages: they would be walked in vain.
exclude_patterns = [".venv*", ".git", "build", "hpccoll", "tests", "dist", "*.egg-info", ".*_cache"]
suppress_warnings = [
    "myst.header",  # a page may begin below the first level
    "toc.no_title",  # results are as programs wrote them, some without a heading
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
highlight_language = "none"  # blocks without a language are what a terminal shows

# Docstrings are in Google's style with names in single backticks, as Markdown has them.
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_mock_imports = ["torch"]
python_maximum_signature_line_length = 100

# Names that users import must resolve.  Those of other projects are text, since their pages may be out of
# reach here, and so are types of inner modules that the reference does not have.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!hpccoll\.).*"),
    ("py:.*", r"hpccoll\.(collectives|observe|ops|runtime|topology)\..*"),
]

html_theme = "furo"
html_title = f"hpccoll {release}"
html_extra_path = ["html"]
html_show_copyright = False
html_show_sourcelink = False


def _public_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """A class named by the module that defines it is documented under the name that users import."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") == "py" and name in hpccoll.__all__:
        python = env.get_domain("py")
        return python.resolve_xref(env, node["refdoc"], app.builder, "obj", f"hpccoll.{name}", node, content)
    return None


def setup(app: Any) -> None:
    """What Sphinx calls once this file is read."""
    app.connect("missing-reference", _public_name)

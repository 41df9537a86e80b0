"""The configuration of Sphinx for these pages."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

os.environ["TRACKSIDE_PURE_PYTHON"] = "1"  # the compiled methods have no annotations
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "trackside"
version = release = importlib.metadata.version("trackside")
html_title = "trackside"

extensions = [
    "metric_names",
    "myst_parser",
    "reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "vocabulary",
]
exclude_patterns = ["_build"]
nitpicky = True
# A word in backticks in a docstring is a name where there is one of that name, and code where there is none.
nitpick_ignore_regex = [("py:.*", ".*")]
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # some classes have the names of a peer's
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = [
    "accelerate",
    "google",
    "lightning",
    "mlflow",
    "nats",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pynvml",
    "pytorch_lightning",
    "requests",
    "rich",
    "tensorboard",
    "torch",
    "torchtitan",
    "transformers",
    "wandb",
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_html_meta = {
    "description": "Telemetry for machine-learning training: which rank is slow and why, goodput, reports, live views.",
    "keywords": "training telemetry, quickstart, install, gpu, prometheus, goodput, straggler, pytorch, torchrun",
}

# Sessions are copied as they would be typed: without prompts and without the commands' output.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_copy_source = False
html_search_scorer = str(Path(__file__).parent / "_ext" / "search_scorer.js")
html_static_path = ["_static"]
html_css_files = ["code.css"]
html_show_copyright = False
html_favicon = "_static/favicon.svg"
# Links to edit a page lead to the repository that the pages are built in, where the builder names it.
if "GITHUB_REPOSITORY" in os.environ:
    html_theme_options = {
        "source_repository": f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}/",
        "source_branch": os.environ.get("GITHUB_REF_NAME", "main"),
        "source_directory": "docs/",
    }

"""How Sphinx builds these pages."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "trackside"
version = release = importlib.metadata.version("trackside")
html_title = "trackside"

extensions = ["myst_parser", "reference", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "vocabulary"]
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
    "cupti",
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

html_theme = "furo"
html_copy_source = False

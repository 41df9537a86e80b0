"""How Sphinx builds these pages."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "trackside"
version = release = importlib.metadata.version("trackside")
html_title = "trackside"

extensions = ["myst_parser", "vocabulary"]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_copy_source = False

"""Files of Python that are in no package, as modules."""

from __future__ import annotations

import importlib.util


def load(path):
    """Return the file at *path* as a module, named after it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

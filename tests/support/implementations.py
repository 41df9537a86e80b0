"""Both implementations in one process: a module of the package loaded in pure Python."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from trackside import _implementation

needs_core = pytest.mark.skipif(_implementation.native is None, reason="trackside runs in pure Python here")


def pure(name: str):
    """Load another copy of the module *name*, as it is without the compiled core."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    kept, _implementation.native = _implementation.native, None
    sys.modules[name + "@pure"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        _implementation.native = kept
    return module

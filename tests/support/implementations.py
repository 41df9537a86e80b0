"""Both implementations in one process: a module of the package loaded in pure Python."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any
from unittest import mock

import pytest

from trackside import _implementation

needs_core = pytest.mark.skipif(_implementation.native is None, reason="trackside runs in pure Python here")


def pure(name: str) -> Any:
    """Load another copy of the module *name*, as it is without the compiled core."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name + "@pure"] = module
    with mock.patch.object(_implementation, "native", None):
        spec.loader.exec_module(module)
    return module

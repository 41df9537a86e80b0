"""Addresses of streams in other systems, which are read and written as event logs are."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

_SCHEMES: Final = ("nats://", "tls://")


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether *path* is the address of a stream that can be read like a log."""
    return isinstance(path, str) and path.startswith(_SCHEMES)


def stream_module() -> ModuleType:
    """
    Return the module that reads and writes such streams. It needs an extra, and is imported when it is asked for.

    Raises:
        MissingExtraError: The library that it needs is not installed.
    """
    return importlib.import_module("trackside.handlers.nats")

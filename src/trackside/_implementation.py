"""
The switch between the compiled core and pure Python.

The core is used if the package was built with it, unless the environment has ``TRACKSIDE_PURE_PYTHON=1``. Each of its
functions handles the plain case, and calls the Python method that it stands for in all other cases. So these are
written only once.
"""

from __future__ import annotations

import importlib
import logging
import os
import zlib
from typing import Any, Final


def _load() -> Any:
    """Return the compiled core, or None."""
    if os.environ.get("TRACKSIDE_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        found: Any = importlib.import_module("trackside._native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _warn(str(error))
        return None
    present = _fingerprint_of_checkout()
    if present is not None and found.sources != present:
        _warn("it was built from other sources than those here; run python3 native/build.py")
        return None
    return found


def _fingerprint_of_checkout() -> str | None:
    """Return a digest of the C sources, as ``native/build.py`` computes it; None if there are no C sources."""
    package = os.path.dirname(os.path.abspath(__file__))
    root, parent = os.path.split(os.path.dirname(package))
    directory = os.path.join(root, "native")
    if parent != "src" or not os.path.isdir(directory):
        return None
    sources = sorted(name for name in os.listdir(directory) if name.endswith((".c", ".h")))
    digest = 0
    for source in (*sources, os.path.join(get_include(), "trackside.h")):
        with open(os.path.join(directory, source), "rb") as file:
            digest = zlib.crc32(file.read(), digest)
    return f"{digest:08x}" if sources else None


def get_include() -> str:
    """Return the directory of ``trackside.h``, the header for C and C++ extensions that record telemetry."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def _warn(problem: str) -> None:
    logging.getLogger("trackside").warning("trackside runs without its compiled core: %s", problem)


native: Final[Any] = _load()
"""The module ``trackside._native``, or None."""

implementation: Final = "pure" if native is None else "compiled"
"""The implementation that runs: ``compiled`` or ``pure``."""

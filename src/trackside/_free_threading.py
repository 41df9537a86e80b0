"""
Lanes for threads, and objects whose references are not counted, for interpreters without the interpreter lock.

There each reference that is taken or dropped writes to the object, and two threads that write to one object wait for
each other. So what is kept for each call is kept by lane, of which threads that run at once have different ones, as a
rule, and what all of them use is referred to without being written to. With the lock there is one lane, and the rest
does nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, Final, TypeVar

T = TypeVar("T")

FREE_THREADED: Final = not getattr(sys, "_is_gil_enabled", lambda: True)()

LANES: Final = 127 if FREE_THREADED else 1
"""A prime number: the stacks of threads, whose addresses are their idents, lie at equal distances."""

_get_ident: Final = threading.get_ident
_carrier: Final = (lambda: None).__code__
_defer: Any = None
_keep: Any = None

if FREE_THREADED:
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        _defer = ctypes.pythonapi.PyUnstable_Object_EnableDeferredRefcount  # from Python 3.14 on
        _defer.argtypes = (ctypes.py_object,)
        _keep = ctypes.pythonapi._Py_SetImmortal  # noqa: SLF001  PyUnstable_SetImmortal, from 3.15 on, is the same
        _keep.argtypes, _keep.restype = (ctypes.py_object,), None


def lane() -> int:
    """Return the lane of this thread, below `LANES`; threads that run at once may have the same one."""
    return _get_ident() % LANES


def shared(found: T) -> T:
    """
    Return *found*; from now on threads that use it do not count their references.

    For objects that live about as long as the process: only the garbage collector frees it.
    """
    if _defer is not None:
        _defer(found)
    return found


def kept(found: T) -> T:
    """
    Return *found*, which is never freed from now on; threads that use it count no references, nor does C code.

    For what lives as long as the process and is put into other objects: `shared` counts these references.
    """
    if _keep is not None:
        _keep(found)
    return found


def immortal(value: T) -> T:
    """Return *value*, a number or a tuple of such, as an object that is never freed, and its references not counted."""
    # Without the lock all constants of code are such objects.
    constant: T = _carrier.replace(co_consts=(value,)).co_consts[0] if FREE_THREADED else value
    return constant

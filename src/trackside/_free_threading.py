"""
Lanes for threads, and objects whose references are not counted, for interpreters without the interpreter lock.

There, taking or dropping a reference writes to the object, and two threads that write to one object wait for each
other. So the values that every call changes are kept by lane: threads that run at once mostly have different lanes. The
objects that all threads use are not reference-counted. With the lock there is one lane, and the other functions change
nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, Final, TypeVar

T = TypeVar("T")

FREE_THREADED: Final = not getattr(sys, "_is_gil_enabled", lambda: True)()

LANES: Final = 127 if FREE_THREADED else 1
"""A prime number: a thread's ident is the address of its stack, and stacks lie at equal distances."""

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

    For objects that live about as long as the process: only the garbage collector frees them.
    """
    if _defer is not None:
        _defer(found)
    return found


def kept(found: T) -> T:
    """
    Return *found*, which is never freed from now on; threads that use it count no references, nor does C code.

    For objects that live as long as the process and are stored in other objects; `shared` counts those references.
    """
    if _keep is not None:
        _keep(found)
    return found


def immortal(value: T) -> T:
    """Return *value*, a number or a tuple of numbers, as an object that is never freed or reference-counted."""
    # Without the interpreter lock, the constants of code objects are immortal.
    constant: T = _carrier.replace(co_consts=(value,)).co_consts[0] if FREE_THREADED else value
    return constant

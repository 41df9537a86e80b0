"""The means that keep threads out of each other's way, with the interpreter lock and without it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from trackside._free_threading import FREE_THREADED, LANES, immortal, kept, lane, shared
from trackside.events import NOWHERE, IterationSpanEnded
from trackside.events._ambient import _variable
from trackside.events._event import FROM_AMBIENT
from trackside.instruments._span import _NO_ATTRIBUTES

without_lock = pytest.mark.skipif(not FREE_THREADED, reason="there is an interpreter lock")


def test_lanes(in_threads):
    """Of sixteen threads at once nearly all have lanes of their own without the lock, and with it they share one."""
    at_once = threading.Barrier(16)
    found = set()

    def find(_index):
        at_once.wait(30)
        found.add(lane())
        at_once.wait(30)

    in_threads(16, find)
    assert len(found) >= 13 if FREE_THREADED else len(found) == 1
    assert max(found) < LANES


@pytest.mark.parametrize("value", [10**18 + 3, (10**17, -1), 2.5])
def test_immortal(value):
    """The value stays what it is; without the lock no references to it are counted."""
    kept = immortal(value)
    assert kept == value
    if FREE_THREADED:
        assert sys._is_immortal(kept)


@without_lock
@pytest.mark.parametrize("value", [FROM_AMBIENT, NOWHERE])
def test_of_every_event(value):
    """No references are counted to what each event refers to while it is built."""
    assert sys._is_immortal(value)


@without_lock
@pytest.mark.skipif(sys.version_info < (3, 14), reason="the interpreter has no such function")
@pytest.mark.parametrize("value", [_variable, IterationSpanEnded, _NO_ATTRIBUTES], ids=["ambient", "class", "none"])
def test_of_every_span(value):
    """No references are counted to what each span and its surroundings are filled with."""
    assert sys._is_immortal(value)


def test_kept():
    """A kept value is the same object."""
    value = [1]
    assert kept(value) is value


def test_shared():
    """Objects that threads share are freed all the same, by the garbage collector at the latest."""

    class Shared:
        pass

    kept = Shared()
    assert shared(kept) is kept
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None

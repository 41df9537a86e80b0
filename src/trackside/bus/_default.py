"""The default bus of the module-level functions, and the actions on every bus at a fork and at exit."""

from __future__ import annotations

import atexit
import contextlib
import sys
from typing import Any, Final

from trackside._free_threading import shared
from trackside._platform import after_fork_in_child
from trackside.bus._bus import Bus, buses
from trackside.core import complain, deadline_in, described, left_s

EXIT_S: Final = 2.0

default_bus: Final = Bus()

log = shared(default_bus.log)
wants = shared(default_bus.wants)
subscribe = default_bus.subscribe
flush = default_bus.flush
close = default_bus.close
stats = default_bus.stats
counter = default_bus.counter
counters = default_bus.counters
stat = default_bus.stat
gauge = default_bus.gauge
collect = default_bus.collect


def _close_all() -> None:
    """Let every bus deliver what it holds: in two seconds for all of them together, whatever is stalled."""
    deadline_s = deadline_in(EXIT_S)
    waiting = list(buses)
    while waiting:
        bus = waiting.pop()
        try:
            # Half of the time is for the others: most need next to nothing, and a stalled one must not starve them.
            bus.close(left_s(deadline_s) / (2 if waiting else 1))
        except BaseException:  # Ctrl-C once more: the losses are reported all the same
            deadline_s = deadline_in(0.0)
            with contextlib.suppress(BaseException):
                bus.close(0.0)


def _become_child() -> None:
    for bus in list(buses):
        try:
            bus.become_child()
        except Exception as error:  # the others are to work in the child all the same
            complain("a bus could not begin anew after a fork: %s", described(error), error=error)
    _close_with_multiprocessing()


_is_registered = False


def _close_with_multiprocessing() -> None:
    """
    Have the children of multiprocessing close every bus as they end: they run no atexit function.

    They run multiprocessing's own finalizers, but forget those that they inherit or that are made while they are
    unpickled. So one is made by what is called after that.
    """
    global _is_registered  # noqa: PLW0603  children inherit what is registered
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _is_registered:
        _is_registered = True
        util.register_after_fork(util, _register_end)


def _register_end(util: Any) -> None:
    util.Finalize(None, _close_all, exitpriority=0)


atexit.register(_close_all)
after_fork_in_child(_become_child)
_close_with_multiprocessing()
if "multiprocessing.process" in sys.modules and sys.modules["multiprocessing.process"].parent_process() is not None:
    _register_end(sys.modules["multiprocessing.util"])  # first imported by what a child runs

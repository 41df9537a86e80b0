"""Goodput while the job runs, over all attempts of its session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from trackside.events import Event, Handler, Publish, Source, UnreadableError, clock
from trackside.handlers import replay
from trackside.handlers.models.goodput import GoodputMonitor

_MAIN = "main"


def with_goodput_monitor(
    handlers: Sequence[Handler], *, publish: Publish, directory: str | os.PathLike[str], source: Source
) -> Sequence[Handler]:
    """
    Return *handlers* with a goodput monitor among them where one belongs: on rank 0.

    What monitors are there, the user's or ours, publish through *publish* unless they were given another way, and are
    shown the rank's earlier attempts in *directory*.
    """
    monitors = [handler for handler in handlers if isinstance(handler, GoodputMonitor)]
    if not monitors and source.rank == 0 and source.role == _MAIN:
        monitors = [GoodputMonitor()]
        handlers = [*monitors, *handlers]
    for monitor in monitors:
        monitor.publish = monitor.publish or publish
    show_earlier_attempts(monitors, directory=directory, source=source)
    return handlers


def show_earlier_attempts(handlers: Iterable[object], *, directory: str | os.PathLike[str], source: Source) -> None:
    """Have the goodput monitors among *handlers* read the earlier attempts of *source*, if there can be any."""
    if not source.session_tag and not source.attempt:  # it is the first of its session
        return
    for monitor in handlers:
        if isinstance(monitor, GoodputMonitor):
            monitor.read_earlier = monitor.read_earlier or (lambda: _earlier(directory, source))


def ask_for_goodput(handlers: Iterable[object]) -> None:
    """Have every monitor among *handlers* publish an update with the next heartbeat."""
    for handler in handlers:
        if isinstance(handler, GoodputMonitor):
            handler.ask(clock.now_ns())


def _earlier(directory: str | os.PathLike[str], here: Source) -> Iterator[Event]:
    """Yield the events of other processes that were this rank of the session."""

    def is_earlier(there: Source) -> bool:
        is_ours = (there.session_tag or there.run_id) == (here.session_tag or here.run_id)
        return is_ours and there.id != here.id and there.role == _MAIN and there.rank == here.rank

    try:
        yield from replay(directory, sources=is_earlier)
    except UnreadableError:  # what can be read was; commands that read the log report the rest
        return

"""``trackside top``: what a running job does now."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from trackside._platform import keyboard
from trackside.cli._print import check_followed, json_text, readable, report_unread, warn
from trackside.core.text import clock, printable
from trackside.events import ConfigError, Event
from trackside.handlers import Replay, follow, replay
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.zeromq import Attachment, attach
from trackside.report import Top, TopView, top_line

_MOST_WAITING: Final = 20_000
"""The most events that wait to be processed; then reading pauses."""
_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.1
_PLAIN_EVERY_S: Final = 2.0

HELP = "show what a running job does now"
DESCRIPTION = (
    "Show step rate, goodput, findings, ranks, open spans, counters and what was lost, twice a second. "
    "Keys: q quits, p or the space bar pauses, s sorts the ranks by another column. Where there is no terminal it "
    "ends with the job."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "where", metavar="ENDPOINT|PATH", nargs="+", help="where a job is heard (ipc://, tcp://), or what it writes"
    )
    parser.add_argument("--keys", metavar="DIR", help="a directory of keys, where the endpoint asks for such")
    parser.add_argument("--insecure", action="store_true", help="do without keys where they would be needed")
    parser.add_argument("--once", action="store_true", help="show what there is, once")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, help="how often to show it (default: 0.5; plain 2)"
    )
    parser.add_argument("--plain", action="store_true", help="print lines, as where there is no terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(options: argparse.Namespace) -> int:
    """Show the job until it ends or the user quits; return 2 if part of recorded logs could not be read."""
    if options.interval is not None and not 0.05 <= options.interval <= 3600:  # noqa: PLR2004
        raise ConfigError("--interval", options.interval, "give seconds from 0.05 to 3600")
    is_plain = options.plain or options.json or not _can_draw()
    with (
        _watching(options, ends_with_job=is_plain) as (top, read, recorded),
        _screen(options, is_plain=is_plain) as (show, press),
    ):
        every_s = options.interval or (_PLAIN_EVERY_S if is_plain else 0.5)
        due_s = time.monotonic() + (0.0 if not is_plain else min(every_s, 0.5))
        is_whole = False
        while True:
            is_over = read(_LOOK_S)
            if press() == "q":
                return 0
            is_news, is_whole = top.is_ready and not is_whole, top.is_ready
            # Before a log is read to its end, running ranks would be shown as silent.
            if (time.monotonic() >= due_s and is_whole) or is_over or is_news:
                show(top.view(time.time_ns()))
                due_s = time.monotonic() + every_s
            if is_over:
                return 0 if recorded is None else report_unread("top", recorded)


def _can_draw() -> bool:
    """Return whether stdout is a terminal on which a screen can be drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


Press = Callable[[], str]
"""Returns the key that was pressed since the last call; empty if none was."""
Read = Callable[[float], bool]
"""Processes the events that come within so many seconds; returns True if no more will come."""


@contextmanager
def _watching(options: argparse.Namespace, *, ends_with_job: bool) -> Iterator[tuple[Top, Read, Replay | None]]:
    """Yield the view of the job, what brings it up to date, and the logs, if they were read once to their end."""
    streams = [where for where in options.where if is_stream(where)]
    remote = [where for where in options.where if "://" in where and where not in streams]
    if remote and len(remote) < len(options.where):
        raise ConfigError("top", " ".join(options.where), "give endpoints or paths, not both")
    are_runs = [stream_module().is_run(where) for where in streams]
    top = Top()
    if remote:
        # The models' states of several endpoints cannot be joined: each has the events of its own ranks.
        models = top.models if len(remote) == 1 else ()
        with attach(*remote, models=models, keys=options.keys, insecure=options.insecure) as attachment:
            yield top, _attached(top, attachment, is_once=options.once), None
    elif are_runs == [True] and len(options.where) == 1:
        with attach(*streams, models=top.models) as attachment:
            yield top, _of_stream(top, attachment, is_once=options.once, ends_with_job=ends_with_job), None
    elif options.once:
        recorded = replay(*options.where)
        for event in readable(recorded):
            top.drive(event)
        if recorded.problems and not recorded.trackers:
            raise recorded.problems[0]
        top.lose(recorded.missing)
        yield top, lambda _: True, recorded
    else:
        stop = threading.Event()
        try:
            yield top, _followed(top, options.where, stop, ends_with_job=ends_with_job), None
        finally:
            stop.set()


_QUIET_S: Final = 2.0
"""The time without events, in seconds, after which the log of an ended job counts as complete."""
_LATE_S: Final = 1.5
"""A view is shown this time, in seconds, after attaching or without events, or at an event younger than this."""


def _attached(top: Top, attachment: Attachment, *, is_once: bool) -> Read:
    """Return a reader of a stream; the states of the job's models cover the time before."""
    began_s, consume = time.monotonic(), top.consume if attachment.models else top.drive
    joined_ns = 0

    def read(timeout_s: float) -> bool:
        nonlocal joined_ns
        for event in attachment.read(timeout_s):
            consume(event)
        top.lose(attachment.lost)
        late = [name for name, joined in attachment.models.items() if not joined.complete]
        top.partial = tuple(sorted(late if attachment.models else top.names))
        goodput = attachment.models.get(GoodputAccumulator.__qualname__)
        if goodput is not None and goodput.complete and goodput.since_ns != joined_ns:
            joined_ns = goodput.since_ns
            top.catch_up()
        top.is_ready = top.is_ready or (joined_ns != 0 and not top.partial) or time.monotonic() - began_s > _LATE_S
        return bool(attachment.is_over or (is_once and top.is_ready))

    return read


def _of_stream(top: Top, attachment: Attachment, *, is_once: bool, ends_with_job: bool) -> Read:
    """Return a reader of a run in a stream; it begins with the state that its collectors stored."""
    top.partial = tuple(sorted(name for name, joined in attachment.models.items() if not joined.complete))
    top.catch_up()

    def take(timeout_s: float) -> Iterable[Event]:
        yield from attachment.read(timeout_s)
        top.lose(attachment.lost)

    read = _growing(top, take, top.consume, ends_with_job=ends_with_job)
    return lambda timeout_s: read(timeout_s) or (is_once and top.is_ready)


def _followed(top: Top, paths: list[str], stop: threading.Event, *, ends_with_job: bool) -> Read:
    """
    Return a reader of a growing log; until *stop* is set, a thread waits for events, so that the screen stays alive.
    """
    check_followed("top", paths)
    waiting: deque[Event] = deque()

    def watch() -> None:
        for event in follow(*paths, wait=True, poll_interval_s=0.2, stop=stop):
            waiting.append(event)
            while len(waiting) > _MOST_WAITING and not stop.is_set():
                time.sleep(_PAUSE_S)

    threading.Thread(target=watch, name="trackside top", daemon=True).start()

    def take(timeout_s: float) -> Iterable[Event]:
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if waiting:
                yield waiting.popleft()
            else:
                time.sleep(_PAUSE_S)

    return _growing(top, take, top.drive, ends_with_job=ends_with_job)


def _growing(
    top: Top, take: Callable[[float], Iterable[Event]], consume: Callable[[Event], None], *, ends_with_job: bool
) -> Read:
    """Return a reader that calls *consume* with the events of a log, or of a stream that is read like one."""
    heard_s = time.monotonic()

    def read(timeout_s: float) -> bool:
        nonlocal heard_s
        is_young = False
        for event in take(timeout_s):
            consume(event)
            heard_s = time.monotonic()
            is_young = is_young or time.time_ns() - event.at_ns < _LATE_S * 1e9
        quiet_s = time.monotonic() - heard_s
        is_asked = ends_with_job and (not top.is_ready or quiet_s > _QUIET_S)
        is_over = is_asked and top.is_over(time.time_ns())
        # Of a job that is over, only the last view is shown.
        top.is_ready = top.is_ready or ((is_young or quiet_s > _LATE_S) and not is_over)
        return is_over and quiet_s > _QUIET_S

    return read


def _lines() -> Callable[[TopView], None]:
    """Return a function that prints a view as a line; for a job that has ended, no line twice."""
    said = ""

    def say(view: TopView) -> None:
        nonlocal said
        line = printable(top_line(view))
        if line != said or not view.has_ended:
            print(f"{clock(view.at_ns, has_ms=True)[11:19]}  {line}", flush=True)
        said = line

    return say


@contextmanager
def _screen(options: argparse.Namespace, *, is_plain: bool) -> Iterator[tuple[Callable[[TopView], None], Press]]:
    """Yield a function that shows a view, and one that returns the key that was pressed."""
    if options.json:
        yield lambda view: print(json_text(view.to_json()), flush=True), str
        return
    if not is_plain:
        try:
            from trackside.report.rich import SORTS, ScreenState, live_top, print_top
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "rich":
                raise
            warn("trackside top: these are lines, since the library rich, which draws a screen, is not installed")
            is_plain = True
    if is_plain:
        yield _lines(), str
        return
    if options.once:
        yield print_top, str
        return
    how, latest = ScreenState(where=" ".join(options.where)), None
    with live_top() as draw, keyboard() as key:

        def show(view: TopView) -> None:
            nonlocal latest
            if not how.is_paused or latest is None:
                latest = view
            draw(latest, how)

        def press() -> str:
            nonlocal how
            pressed = key().lower()
            if pressed == "s":
                how = attrs.evolve(how, sort=SORTS[(SORTS.index(how.sort) + 1) % len(SORTS)])
            elif pressed in {"p", " "}:
                how = attrs.evolve(how, is_paused=not how.is_paused)
            if pressed and latest is not None:
                draw(latest, how)
            return pressed

        yield show, press

"""``trackside tail``: events as lines."""

from __future__ import annotations

import argparse
import collections
import contextlib
import fnmatch
import heapq
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from trackside.cli._print import (
    EventLines,
    add_paths,
    add_ranks,
    add_types,
    check_followed,
    event_line,
    globs,
    of_ranks,
    rank_set,
    readable,
    report_unread,
    warn,
    whole_number,
)
from trackside.events import Event, UnreadableError
from trackside.handlers import follow, replay
from trackside.wire import to_json, wire_name_of

_MOST_NAMED: Final = 8
_SORTED: Final = 4_096
"""The number of events that are held back to sort them by time: computed figures are recorded late."""

HELP = "print recorded events, one a line"
DESCRIPTION = "Print the events of logs, one a line, all sources merged by time."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written, now or later")
    add_types(parser)
    add_ranks(parser)
    parser.add_argument(
        "-n", "--last", metavar="N", type=whole_number(0), help="only the last N events of what is there"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="all fields of each event, however long the line")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def run(options: argparse.Namespace) -> int:
    """Print the events; return 1 if there is none, 2 if part of the input could not be read."""
    show: Callable[[Event], str] = to_json if options.json else event_line if options.verbose else EventLines()
    if options.follow:
        return _follow(options, show)
    recorded = replay(*options.path)
    seen: set[str] = set()
    events: Iterable[Event] = _by_time(
        _matching(of_ranks(readable(recorded), rank_set(options)), globs(options.type), seen)
    )
    if options.last is not None:
        events = collections.deque(events, maxlen=min(options.last, sys.maxsize))
    has_any = False
    for event in events:
        has_any = True
        print(show(event))
    code = report_unread("tail", recorded)
    if code or has_any or options.last == 0:
        return code
    wanted = f" of type {' or '.join(options.type)}" if options.type else ""
    wanted += " of these ranks" if options.ranks is not None else ""
    warn(f"trackside tail: no event{wanted}{_there(seen, options.type)}")
    return 1


def _there(seen: Iterable[str], wanted: Iterable[str]) -> str:
    """Return the types that the log has, first those whose names share a word with the *wanted* ones."""
    words = re.findall(r"[a-z]+", " ".join(wanted).lower())
    names = sorted(seen, key=lambda name: (not any(word in name for word in words), name))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; there are {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _follow(options: argparse.Namespace, show: Callable[[Event], str]) -> int:
    check_followed("tail", options.path)

    def chosen(events: Iterable[Event]) -> Iterator[Event]:
        return _matching(of_ranks(events, rank_set(options)), globs(options.type), set())

    earlier = 0
    if options.last is not None:
        with contextlib.suppress(UnreadableError):  # there is nothing yet
            earlier = max(0, sum(1 for _ in chosen(readable(replay(*options.path)))) - options.last)
    for event in itertools.islice(chosen(follow(*options.path, wait=True)), earlier, None):
        print(show(event), flush=True)
    return 0


def _by_time(events: Iterable[Event]) -> Iterator[Event]:
    """Yield *events* in the order of their times; a source records some of them a moment after that time."""
    held: list[tuple[int, int, Event]] = []
    for number, event in enumerate(events):
        item = event.at_ns, number, event
        if len(held) < _SORTED:
            heapq.heappush(held, item)
        else:
            yield heapq.heappushpop(held, item)[2]
    while held:
        yield heapq.heappop(held)[2]


def _matching(events: Iterable[Event], chosen: tuple[str, ...], seen: set[str]) -> Iterator[Event]:
    """Yield the events of the *chosen* types, of all types if none is; add the names of all types to *seen*."""
    for event in events:
        name = wire_name_of(event)
        seen.add(name)
        if not chosen or any(fnmatch.fnmatchcase(name, glob) for glob in chosen):
            yield event

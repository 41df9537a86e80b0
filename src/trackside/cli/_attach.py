"""``trackside attach``: the events of a running job, as they happen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from trackside.cli._print import (
    EventLines,
    add_ranks,
    add_types,
    event_line,
    globs,
    of_ranks,
    rank_set,
    warn,
    whole_number,
)
from trackside.cli._serving import collecting_rarely
from trackside.core.text import printable
from trackside.events import Event, Priority
from trackside.handlers.zeromq import Attachment, attach
from trackside.wire import to_json

_LOOK_S: Final = 0.5

HELP = "watch a running job, or a collector"
DESCRIPTION = (
    "Print the events of a running job, one a line, from now on until it ends. The job never waits "
    "for it; what it has to skip is reported."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        nargs="+",
        help="ipc://… or tcp://… of a job or a collector, the directory that a job on this machine writes to, or a "
        "stream, as nats://HOST:PORT/STREAM",
    )
    add_types(parser)
    add_ranks(parser)
    parser.add_argument(
        "--min-priority",
        choices=[level.name.lower() for level in Priority],
        help="the lowest priority; all unless given",
    )
    parser.add_argument("-n", "--count", metavar="N", type=whole_number(1), help="stop after N events")
    parser.add_argument("--keys", metavar="DIR", help="a directory of keys, where the endpoint asks for such")
    parser.add_argument("--insecure", action="store_true", help="do without keys where they would be needed")
    parser.add_argument("-v", "--verbose", action="store_true", help="all fields of each event, however long the line")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def run(options: argparse.Namespace) -> int:
    """Print the events until the job ends, or until ``--count`` of them were printed."""
    show: Callable[[Event], str] = to_json if options.json else event_line if options.verbose else EventLines()
    ranks = rank_set(options)
    watching = attach(
        *options.endpoint,
        to=globs(options.type) or Event,
        min_priority=Priority[options.min_priority.upper()] if options.min_priority else None,
        keys=options.keys,
        insecure=options.insecure,
    )
    with collecting_rarely(), watching as attachment:
        _print(attachment, show, ranks, options.count)
    return 0


def _print(
    attachment: Attachment, show: Callable[[Event], str], ranks: frozenset[int] | None, most: int | None
) -> None:
    news, printed = _News(), 0
    while not attachment.is_over:
        events = list(of_ranks(attachment.read(_LOOK_S), ranks))
        if most is not None:
            events = events[: most - printed]
        for event in events:
            print(show(event))
        if events:
            sys.stdout.flush()
            printed += len(events)
        news.report(attachment)
        if most is not None and printed >= most:
            return


class _News:
    """Reports everything else that is new to stderr."""

    def __init__(self) -> None:
        self._lost = 0
        self._was_silent = False
        self._is_met = False
        self._busy = ""

    def report(self, attachment: Attachment) -> None:
        """Report peers that answer, are busy, fell silent or came back, and skipped events."""
        peers = [printable(peer) for peer in attachment.peers if peer]
        if peers and not self._is_met:
            self._is_met = True
            warn(f"trackside attach: watching {', '.join(peers)}")
        if attachment.busy != self._busy:
            self._busy = attachment.busy
            if self._busy:
                warn(f"trackside attach: busy: {printable(self._busy)}; asking again every second")
        if attachment.is_silent != self._was_silent:
            self._was_silent = attachment.is_silent
            warn(
                "trackside attach: nothing has come for 3 s; waiting for it to come back"
                if self._was_silent
                else "trackside attach: it is back"
            )
        if attachment.lost > self._lost:
            warn(f"trackside attach: {attachment.lost - self._lost:,} events were skipped")
            self._lost = attachment.lost

"""``trackside collect``: receive many ranks, keep their logs, serve viewers; or share a stream's runs among workers."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from trackside.cli._print import directory_name, event_line, positive, warn, whole_number
from trackside.cli._serving import add_safety, collecting_rarely, paste_ready, until_signalled
from trackside.events import (
    ConfigError,
    ControlUsed,
    Event,
    EventsLost,
    PeerCut,
    RankFellSilent,
    RankSpokeAgain,
    StallDetected,
)
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.zeromq import Collector, PeerLimits
from trackside.handlers.zeromq._protocol import TokenBucket
from trackside.wire import wire_name_of

_LINES_PER_S: Final = 1.0
_MOST_LINES: Final = 100
"""Lines of one type that may be printed at once."""
_LONGEST_LINE: Final = 1_000
_NOTICED = (RankFellSilent, RankSpokeAgain, StallDetected, EventsLost, PeerCut, ControlUsed)

HELP = "receive the events of many ranks, keep their logs, let viewers attach"
DESCRIPTION = (
    "Take the streams of many ranks in, keep their logs, and let viewers attach. Ranks that fall "
    "silent, and events that are lost, are said on stderr. With the address of a stream, ranks publish there, and "
    "any number of these commands divide its runs. Ends at SIGINT or SIGTERM."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "stream", metavar="STREAM", nargs="?", help="collect a stream, as nats://HOST:PORT/STREAM, in place of --bind"
    )
    parser.add_argument(
        "--workers", metavar="N", type=whole_number(1), default=1, help="processes that divide the stream's runs"
    )
    parser.add_argument(
        "--replicas",
        metavar="N",
        type=whole_number(1),
        default=1,
        help="nodes of a cluster that keep the stream, if it is created",
    )
    parser.add_argument("--bind", metavar="ENDPOINT", help="where ranks connect to, as tcp://*:7070")
    parser.add_argument("--publish", metavar="ENDPOINT", help="where viewers attach, as tcp://*:7071")
    parser.add_argument("--pub", metavar="ENDPOINT", help="where a plain zmq.SUB gets each frame, as tcp://*:7072")
    parser.add_argument(
        "--log", metavar="DIR", type=directory_name, help="keep every rank's log there; read back at the next start"
    )
    add_safety(parser)
    parser.add_argument(
        "--silent-after",
        metavar="SECONDS",
        type=positive,
        help="when a rank counts as silent (default: after three of its heartbeat intervals, at least 3)",
    )
    parser.add_argument(
        "--quota",
        metavar="EVENTS",
        type=positive,
        default=PeerLimits().events,
        help="events a second that one peer may send (default: %(default).0f)",
    )


def run(options: argparse.Namespace) -> int:
    """Collect until a signal comes; return 1 if an event was not logged, or a worker failed."""
    if options.stream is not None:
        return _collect_stream(options)
    for name in ("workers", "replicas"):
        if getattr(options, name) > 1:
            raise ConfigError(f"--{name}", getattr(options, name), "leave it out, or give nats://HOST:PORT/STREAM too")
    if options.bind is None:
        raise ConfigError("--bind", None, "give where ranks connect to, as tcp://*:7070, or nats://HOST:PORT/STREAM")
    collector = Collector(
        options.bind,
        publish=options.publish,
        broadcast=options.pub,
        log=options.log,
        keys=options.keys,
        insecure=options.insecure,
        silent_after_s=options.silent_after,
        limits=PeerLimits(events=options.quota),
    )
    notices = Notices()
    collector.models.append(notices)
    with until_signalled(collector.stop), collecting_rarely():
        try:
            _greet(collector, options)
            collector.serve()
        finally:
            done = collector.close()
            notices.close()
    totals = collector.totals()
    print(", ".join(f"{name} {count}" for name, count in totals.items()))
    return 0 if done and not totals["not_logged"] else 1


def _collect_stream(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ("bind", "publish", "pub", "log", "keys", "insecure")}
    for name, value in given.items():
        if value:
            raise ConfigError(f"--{name}", value, "leave it out: ranks and viewers of a stream use its server")
    if options.quota != PeerLimits().events:
        raise ConfigError("--quota", options.quota, "leave it out: it is for ranks that connect to --bind")
    if not is_stream(options.stream):
        raise ConfigError("STREAM", options.stream, "give nats://HOST:PORT/STREAM")
    notices = Notices()
    collector = stream_module().NatsCollector(
        options.stream, silent_after_s=options.silent_after, replicas=options.replicas, on_event=notices
    )
    others = [
        subprocess.Popen(_worker_command(options), stdout=subprocess.DEVNULL)  # noqa: S603  this very command
        for _ in range(options.workers - 1)
    ]
    with until_signalled(collector.stop), collecting_rarely():
        try:
            print(f"ranks:   TRACKSIDE_COLLECTOR={collector.address}")
            print(f"viewers: trackside report {collector.address}", flush=True)
            collector.serve()
        finally:
            for other in others:
                other.terminate()
            codes = [other.wait() for other in others]
            notices.close()
    print(", ".join(f"{name} {count}" for name, count in collector.counts.items()))
    return 0 if all(code in {0, -signal.SIGTERM} for code in codes) else 1


def _worker_command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "trackside", "collect", options.stream, "--replicas", str(options.replicas)]
    return command if options.silent_after is None else [*command, "--silent-after", str(options.silent_after)]


def _greet(collector: Collector, options: argparse.Namespace) -> None:
    restored = collector.restored
    for problem in restored.problems:
        warn(f"trackside collect: {problem}")
    if restored.frames:
        known = collector.totals()  # without the collector's own events, as at its end
        print(f"read back {known['events']:,} events of {known['sources']:,} source(s) from {options.log}")
    safety = f" --keys {options.keys}" if options.keys else " --insecure" if options.insecure else ""
    endpoint = paste_ready(collector.endpoint)
    print(f"ranks:   TRACKSIDE_COLLECTOR={endpoint}")
    if collector.viewer_endpoint:
        print(f"viewers: trackside attach {paste_ready(collector.viewer_endpoint)}{safety}")
    if collector.broadcast_endpoint:
        print(f"zmq.SUB: {paste_ready(collector.broadcast_endpoint)}")
    if options.insecure:
        print("jobs:    start(remote=Remote(insecure=True))")
    sys.stdout.flush()


class Notices:
    """
    Prints urgent events to stderr, a bounded number of each type, because ranks may send any number.

    Args:
        monotonic_s: Returns the time in seconds, by a monotonic clock.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._allowed: dict[str, TokenBucket] = {}
        self._left_out: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Print *event* if it is urgent."""
        is_news = not isinstance(event, ControlUsed) or event.source.role == "collector"  # ranks publish it too
        if not isinstance(event, _NOTICED) or not is_news:
            return
        kind = wire_name_of(event)
        allowed = self._allowed.setdefault(kind, TokenBucket(_LINES_PER_S, _MOST_LINES))
        if not allowed.take(self._monotonic_s()):
            self._left_out[kind] += 1
            return
        self._say_left_out(kind)
        warn(event_line(event)[:_LONGEST_LINE])

    def close(self) -> None:
        """Print how many lines were left out since the last one of each type."""
        for kind in sorted(self._left_out):
            self._say_left_out(kind)

    def _say_left_out(self, kind: str) -> None:
        count = self._left_out.pop(kind, 0)
        if count:
            warn(f"trackside collect: {count:,} more {kind} not shown")

"""``trackside ctl``: verbs for a running job, or for all ranks behind a collector."""

from __future__ import annotations

import argparse
from typing import Any, Final

from trackside.cli._print import add_ranks, json_text, positive, rank_set, warn
from trackside.core.text import printable, ranges
from trackside.events import Priority
from trackside.handlers.zeromq import VERBS, Outcome, command, find_endpoints

_NOBODY: Final = {"expected": 0}
"""The values in the answer of a process that is not meant, and has nobody behind it who is."""

HELP = "ask a running job how it is, or to record less"
DESCRIPTION = (
    "Have all ranks, or some, say how they are (status), record less (priority, sample, pause), all "
    "again (resume), or write what they have (flush). Each use is an event in their streams. Over TCP this takes "
    "the control key."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        help="where a job publishes, or a collector does; or the directory that a job on this machine writes to",
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument(
        "value", nargs="?", help=f"for priority: {', '.join(Priority.__members__)}; for sample: each n-th step"
    )
    add_ranks(parser)
    parser.add_argument(
        "--for", dest="seconds", type=positive, metavar="SECONDS", help="end what is asked after so long"
    )
    parser.add_argument("--keys", metavar="DIR", help="a directory with the control key")
    parser.add_argument(
        "--timeout", type=positive, default=5.0, metavar="SECONDS", help="how long to wait (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Send the verb and print each answer; return 1 if a process refused, failed or did not answer, or is not there."""
    is_endpoint = "://" in options.endpoint
    endpoints = [options.endpoint] if is_endpoint else find_endpoints(options.endpoint)
    ranks = rank_set(options) or frozenset()
    answers = [_ask(endpoint, options, ranks) for endpoint in endpoints]
    done = [_is_done(outcomes) for outcomes in answers]  # each says how many answered
    if not all(done):
        return 1
    unknown = ranks - {outcome.values.get("rank") for outcomes in answers for outcome in outcomes}
    if unknown:
        warn(f"trackside ctl: there is no process of rank(s) {ranges(unknown)}")
    return 1 if unknown else 0


def _ask(endpoint: str, options: argparse.Namespace, ranks: frozenset[int]) -> list[Outcome]:
    outcomes = command(
        endpoint,
        options.verb,
        _arguments(options),
        targets=[f"rank:{rank}" for rank in sorted(ranks)],
        keys=options.keys,
        timeout_s=options.timeout,
    )
    for outcome in outcomes:
        if outcome.values != _NOBODY:
            print(_json(outcome) if options.json else printable(_line(outcome)))
    return outcomes


def _is_done(outcomes: list[Outcome]) -> bool:
    """Return whether all processes behind an endpoint did it; print how many answered if not all did."""
    expected = outcomes[0].values.get("expected")
    answers = sum("expected" not in outcome.values for outcome in outcomes)
    is_all = not isinstance(expected, int) or answers >= expected
    if not is_all:
        print(f"{answers} of {expected} answered")
    return is_all and all(outcome.done for outcome in outcomes)


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {} if options.seconds is None else {"seconds": options.seconds}
    if options.verb == "priority":
        if options.value is None:
            options.parser.error(f"priority: give a level, one of {', '.join(Priority.__members__)}")
        arguments["level"] = options.value.upper()
    elif options.verb == "sample":
        if options.value is None or not options.value.isdecimal():
            options.parser.error("sample: give a whole number: of each how many steps one is recorded")
        arguments["every"] = int(options.value)
    elif options.value is not None:
        options.parser.error(f"{options.verb} takes no value")
    return arguments


def _json(outcome: Outcome) -> str:
    return json_text({"source": outcome.source_id, "done": outcome.done, **outcome.values})


def _line(outcome: Outcome) -> str:
    values = outcome.values
    who = f"rank {values['rank']}" if "rank" in values else f"source {outcome.source_id}"
    said = "  ".join(f"{name}={value}" for name, value in values.items() if name != "rank")
    return f"{who:<24} {'done' if outcome.done else 'NOT done'}  {said}"

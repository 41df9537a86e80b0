"""``trackside goodput``: what every second of a session was spent on."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any, Final

import attrs

from trackside.cli._print import UNREADABLE, add_session, json_text, readable, report_unread, warn
from trackside.core import text as words
from trackside.core.text import clock, printable
from trackside.core.times import time_ns
from trackside.events import ConfigError, Event, Source, UnreadableError
from trackside.handlers import replay
from trackside.handlers.ml_goodput import RecordFiles, holds_records
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputResult, StepTimes
from trackside.report._report import shown
from trackside.wire import views

_STEP_TIME: Final = ("ideal_s", "p50_s", "p90_s", "p99_s", "deviation_s")
_MOST_SESSIONS: Final = 20
_MOST_SECONDS: Final = 4e9

HELP = "say what every second of a session was spent on"
DESCRIPTION = (
    "Assign every second of a session, over all its attempts, to one bucket. Times T are ISO 8601 "
    "with a zone, or seconds since 1970."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", metavar="PATH", nargs="+", help="event logs or records, or directories with such")
    add_session(parser)
    parser.add_argument("--from", dest="start", metavar="T", help="count from then on")
    parser.add_argument("--to", dest="end", metavar="T", help="count until then")
    parser.add_argument("--window", metavar="SECONDS", help="count so many seconds: after --from, else the last ones")
    parser.add_argument(
        "--exclude", metavar="FROM/TO", action="append", default=[], help="leave this stretch out; may be repeated"
    )
    parser.add_argument("--ideal-step-time", metavar="S", help="what a step should take; found out unless given")
    parser.add_argument(
        "--format",
        choices=("auto", "events", "ml-goodput"),
        default="auto",
        help="event logs, or ml-goodput-measurement's records as JSON lines; by content unless given",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the account; return 2 if part of the input could not be read."""
    question = _Question.of(options)
    model = GoodputAccumulator(ideal_step_time_s=question.ideal_s)
    reading, code = _read(options.path, options.format, model)
    reading.ideal_is_given = question.ideal_s is not None
    sessions = model.sessions()
    if not sessions and code:
        return code
    result = question.ask(model, _chosen(options, sessions))
    if options.json:
        print(json_text(as_json(result)))
        for problem, count in result.problems.items():
            warn(f"trackside goodput: {count:,} × {problem}")
    else:
        for line in lines(result, reading):
            print(printable(line))
    return code


def as_json(result: GoodputResult) -> dict[str, Any]:
    """Return *result* as plain data for JSON, without the problems of the input."""
    plain = result.to_json()
    plain.pop("problems", None)
    return {**plain, "step_time": {name: plain["step_time"][name] for name in _STEP_TIME}}


@attrs.frozen
class _Question:
    """The question that the options ask."""

    start_ns: int | None
    end_ns: int | None
    window_ns: int | None
    exclude: list[tuple[int, int]]
    ideal_s: float | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> _Question:
        """
        Return the question that *options* ask.

        Raises:
            ConfigError: A value makes no sense.
        """
        start_ns = None if options.start is None else time_ns("--from", options.start)
        end_ns = None if options.end is None else time_ns("--to", options.end)
        if start_ns is not None and end_ns is not None and end_ns <= start_ns:
            raise ConfigError("--to", options.end, "give a time later than --from")
        window_s = None if options.window is None else _seconds("--window", options.window)
        if window_s is not None and start_ns is not None and end_ns is not None:
            raise ConfigError("--window", options.window, "it goes with --from or with --to, not with both")
        return cls(
            start_ns,
            end_ns,
            None if window_s is None else max(1, round(window_s * 1e9)),
            [_stretch(text) for text in options.exclude],
            None if options.ideal_step_time is None else _seconds("--ideal-step-time", options.ideal_step_time),
        )

    def ask(self, model: GoodputAccumulator, session: str) -> GoodputResult:
        """Return the answer for *session*."""
        start_ns, end_ns = self.start_ns, self.end_ns
        if self.window_ns is not None:
            if start_ns is not None:
                end_ns = start_ns + self.window_ns
            else:
                if end_ns is None:
                    end_ns = model.result(session=session).end_ns
                start_ns = end_ns - self.window_ns
        return model.result(session=session, start_ns=start_ns, end_ns=end_ns, exclude=self.exclude)


def _seconds(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST_SECONDS:
        raise ConfigError(option, text, "give a number of seconds above zero")
    return value


def _stretch(text: str) -> tuple[int, int]:
    first, slash, last = text.partition("/")
    if not slash:
        raise ConfigError("--exclude", text, "give two times with a slash between them")
    start_ns, end_ns = time_ns("--exclude", first), time_ns("--exclude", last)
    if end_ns <= start_ns:
        raise ConfigError("--exclude", text, "give the earlier time first")
    return start_ns, end_ns


def _read(paths: list[str], form: str, model: GoodputAccumulator) -> tuple[Reading, int]:
    """Give *model* all that can be read, print what cannot be, and return what was read and the exit code."""
    reading, code = Reading(), 0
    records = [path for path in paths if form == "ml-goodput" or (form == "auto" and holds_records(path))]
    logs = [path for path in paths if path not in records]
    if logs:
        try:
            recorded = replay(*logs)
        except UnreadableError as problem:
            warn(f"trackside goodput: {problem}")
            code = UNREADABLE
        else:
            reading.events = _feed(readable(recorded), model)
            reading.missing = recorded.missing
            if recorded.missing:
                model.missed(Source.unknown(""), recorded.missing)
            code = report_unread("goodput", recorded)
    if records:
        files = RecordFiles(records)
        _feed(files, model)
        reading.records = files.records
        for unread in files.problems:
            warn(f"trackside goodput: {unread}")
            code = UNREADABLE
    return reading, code


def _feed(events: Iterator[Event], model: GoodputAccumulator) -> int:
    # The model gets all events, because each one, of whatever type, shows that a process was alive.
    count = 0
    for view in views(events):
        model.consume(view)
        count += len(view)
    return count


def _chosen(options: argparse.Namespace, sessions: list[str]) -> str:
    """
    Return the session to show.

    Raises:
        ConfigError: There is no session of that name.
        UnreadableError: There is no session at all, or there are several and none was named.
    """
    where = " ".join(options.path)
    if not sessions:
        raise UnreadableError(where, "holds no session", "give the event logs of a job, or its records")
    listed = ", ".join(sessions[:_MOST_SESSIONS]) + (", …" if len(sessions) > _MOST_SESSIONS else "")
    if options.session is None:
        if len(sessions) > 1:
            what = f"holds {len(sessions)} sessions: {listed}"
            raise UnreadableError(where, what, "choose one with --session")
        return sessions[0]
    if options.session not in sessions:
        raise ConfigError("--session", options.session, f"there is {listed}")
    return str(options.session)


_BAR_WIDTH: Final = 60
_INDENT: Final = "  "


@attrs.define
class Reading:
    """The input of the account: counts, and whether the ideal step time was given."""

    events: int = 0
    missing: int = 0
    """Events that are known to be in none of the files."""
    records: int = 0
    """The records of ml-goodput-measurement."""
    ideal_is_given: bool = False


def lines(result: GoodputResult, reading: Reading) -> Iterator[str]:
    """Yield *result* as lines."""
    yield (
        f"session {result.session}: goodput {words.percent(result.goodput)}, {words.seconds(result.productive_s)} of "
        f"{words.seconds(result.elapsed_s)} productive"
    )
    yield (
        f"from {clock(result.start_ns, has_ms=True)} to {clock(result.end_ns, has_ms=True)}, "
        f"{result.attempts} attempt(s), "
        f"{result.disruptions} disruption(s), last step {'-' if result.last_step is None else result.last_step}"
    )
    yield _bar(result.goodput)
    yield ""
    yield from _buckets(result)
    yield ""
    for name, length in result.informational_s.items():
        if length:
            yield f"beside it: {name} {words.seconds(length)}, in the background"
    if result.excluded_s:
        yield f"excluded: {words.seconds(result.excluded_s)}, counted nowhere"
    yield from _steps(result)
    if len(result.ranks) > 1:
        yield _ranks(result)
    yield ""
    yield "how it was computed"
    yield from (f"{_INDENT}{line}" for line in _method(result, reading))
    if result.problems:
        yield ""
        yield "problems"
        yield from (f"{_INDENT}{count:,} × {problem}" for problem, count in result.problems.items())


def _bar(goodput: float | None) -> str:
    filled = round(_BAR_WIDTH * min(1.0, goodput or 0.0))
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}]"


def _buckets(result: GoodputResult) -> Iterator[str]:
    """Yield a line for each bucket with time in it, the largest first, and the total; shares are as in the report."""
    rows = [("productive", "", result.productive_s)]
    for name, length in result.named_badput_s.items():
        if isinstance(length, dict):
            rows += [(kind, name, seconds) for kind, seconds in length.items() if seconds]
        elif length:
            rows.append((shown(name).name, name, length))
    rows.sort(key=lambda row: -row[2])
    total = sum(length for _, _, length in rows)
    width = max(len(bucket) for bucket, _, _ in rows)
    for bucket, name, length in rows:
        yield f"{_row(bucket, width, length, total)}  {name}".rstrip()
    yield _row("total", width, result.elapsed_s, total)


def _row(bucket: str, width: int, length: float, total: float) -> str:
    share = words.percent(length / total if total else 0.0)
    return f"{_INDENT}{bucket:<{width}}  {words.seconds(length):>8}  {share:>7}"


def _steps(result: GoodputResult) -> Iterator[str]:
    times = result.step_time
    if not times.count:
        yield "own time of a step: no step that shows it"
    else:
        yield (
            f"own time of a step: ideal {words.seconds(times.ideal_s)}, p50 {words.seconds(times.p50_s)}, "
            f"p90 {words.seconds(times.p90_s)}, p99 {words.seconds(times.p99_s)}, "
            f"mean deviation {words.seconds(times.deviation_s)}"
        )
        yield f"slow steps: {times.slow_steps:,} of {times.count:,}, longer than {words.seconds(times.slow_from_s)}"
        yield (
            f"degraded: {words.seconds(times.degraded_s)} productive beyond the ideal; "
            f"effective goodput {words.percent(result.effective_goodput)}"
        )
    yield from _open_step(times)


def _open_step(times: StepTimes) -> Iterator[str]:
    if times.open_step is not None:
        yield f"in progress: step {times.open_step}, for {words.seconds(times.open_s)}"


def _ranks(result: GoodputResult) -> str:
    slowest = result.slowest
    if slowest is None:
        return f"ranks: {len(result.ranks)}; none has more badput than another"
    return (
        f"ranks: {len(result.ranks)}; most badput beyond another rank's: rank {slowest.rank}, "
        f"{words.seconds(slowest.cost_s)} of {shown(slowest.bucket).name}"
    )


def _method(result: GoodputResult, reading: Reading) -> Iterator[str]:
    read = [f"{reading.events:,} event(s)"] if reading.events else []
    if reading.missing:
        read.append(f"{reading.missing:,} missing")
    if reading.records:
        read.append(f"{reading.records:,} record(s) of ml-goodput-measurement")
    yield f"read: {', '.join(read) or 'nothing'}"
    end = "has ended" if result.has_ended else "has not ended well: it runs, died, or its log is torn"
    yield f"the session {end}"
    yield "of each attempt the time of the rank that got least out of it counts; validation is not productive"
    ideal = "as given" if reading.ideal_is_given else "the mean of all steps but the slow ones"
    yield f"own time is what no other bucket has; the ideal is {ideal}"
    if reading.records:
        yield "a step in such records lasts until the next one begins: they do not say when it ended"

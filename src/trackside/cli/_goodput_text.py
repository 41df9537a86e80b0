"""A session's account as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from trackside.cli._print import clock_text
from trackside.handlers.models.goodput import GoodputResult, StepTimes

_BAR_WIDTH: Final = 60
_WHOLE: Final = 1000
"""Tenths of a percent."""
_INDENT: Final = "  "


@attrs.define
class Reading:
    """What the account was made from."""

    events: int = 0
    missing: int = 0
    """Events that are known to be in none of the files."""
    records: int = 0
    """Of ml-goodput-measurement."""
    ideal_is_given: bool = False


def lines(result: GoodputResult, reading: Reading) -> Iterator[str]:
    """Yield *result* as lines."""
    yield (
        f"session {result.session}: goodput {_percent(result.goodput)}, {_s(result.productive_s)} of "
        f"{_s(result.elapsed_s)} productive"
    )
    yield (
        f"from {clock_text(result.start_ns)} to {clock_text(result.end_ns)}, {result.attempts} attempt(s), "
        f"{result.disruptions} disruption(s), last step {'-' if result.last_step is None else result.last_step}"
    )
    yield _bar(result.goodput)
    yield ""
    yield from _buckets(result)
    yield ""
    for name, length in result.informational_s.items():
        yield f"beside it: {name} {_s(length)}, in the background"
    if result.excluded_s:
        yield f"excluded: {_s(result.excluded_s)}, counted nowhere"
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
    """Yield a line for each bucket, the largest first, and the total; the percentages add up as they are shown."""
    rows = [("productive", result.productive_s)]
    for name, length in result.badput_s.items():
        if isinstance(length, dict):
            rows += [(f"{name}: {kind}", seconds) for kind, seconds in length.items()] or [(name, 0.0)]
        else:
            rows.append((name, length))
    rows.sort(key=lambda row: -row[1])
    shares = _shares([length for _, length in rows])
    width = max(len(name) for name, _ in rows)
    for (name, length), tenths in zip(rows, shares, strict=True):
        yield _row(name, width, length, tenths)
    yield _row("total", width, result.elapsed_s, sum(shares))


def _row(name: str, width: int, length: float, tenths: int) -> str:
    return f"{_INDENT}{name:<{width}}  {_s(length):>14}  {tenths / 10:>5.1f} %"


def _shares(lengths: Sequence[float]) -> list[int]:
    """Return what each of *lengths* is of all, in tenths of a percent: rounded so that they add up to the whole."""
    total = sum(lengths)
    if not total:
        return [0] * len(lengths)
    exact = [_WHOLE * length / total for length in lengths]
    shares = [int(share) for share in exact]
    rest = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in rest[: _WHOLE - sum(shares)]:
        shares[place] += 1
    return shares


def _steps(result: GoodputResult) -> Iterator[str]:
    times = result.step_time
    if not times.count:
        yield "step time: no step that tells"
    else:
        yield (
            f"step time: ideal {_s(times.ideal_s)}, p50 {_s(times.p50_s)}, p90 {_s(times.p90_s)}, "
            f"p99 {_s(times.p99_s)}, mean deviation {_s(times.deviation_s)}"
        )
        yield f"slow steps: {times.slow_steps:,} of {times.count:,}, longer than {_s(times.slow_from_s)}"
        yield (
            f"degraded: {_s(times.degraded_s)} productive beyond the ideal; "
            f"effective goodput {_percent(result.effective_goodput)}"
        )
    yield from _open_step(times)


def _open_step(times: StepTimes) -> Iterator[str]:
    if times.open_step is not None:
        yield f"in progress: step {times.open_step}, for {_s(times.open_s)}"


def _ranks(result: GoodputResult) -> str:
    slowest = result.slowest
    told = "none" if slowest is None else f"rank {slowest.rank}: {slowest.bucket}, {_s(slowest.cost_s)}"
    return f"ranks: {len(result.ranks)}; the job waited most for {told}"


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
    yield f"the ideal step time is {ideal}"
    if reading.records:
        yield "a step in such records lasts until the next one begins: they do not tell when it ended"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.3f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"

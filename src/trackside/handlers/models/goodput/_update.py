"""The model's answer as an event, `GoodputUpdated`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import attrs

from trackside.events import GoodputUpdated
from trackside.handlers.models.goodput._account import StepTime
from trackside.handlers.models.goodput._accumulator import GoodputAccumulator
from trackside.handlers.models.goodput._result import NS_PER_S, GoodputResult

MOST_STEPS: Final = 1_000
"""Steps that one update holds at most."""
_MARGIN: Final = 2


def update_of(
    model: GoodputAccumulator, result: GoodputResult, *, at_ns: int, windows_s: Sequence[float] = (), since_ns: int = 0
) -> GoodputUpdated:
    """
    Return *result* as an event.

    Args:
        model: Whose answer it is.
        result: The answer for a whole session.
        at_ns: The time of the event, in ns since the epoch.
        windows_s: The lengths of the rolling windows, in seconds.
        since_ns: Leave out the steps that ended by then; an earlier update has them.
    """
    last_step, efficiency = result.last_step, result.slice_efficiency
    return GoodputUpdated(
        at_ns=at_ns,
        span_id=0,
        step=-1 if last_step is None else last_step,
        session=result.session,
        elapsed_s=result.elapsed_s,
        productive_s=result.productive_s,
        goodput=result.goodput,
        effective_goodput=result.effective_goodput,
        degraded_s=result.step_time.degraded_s,
        badput_s=result.badput_s,
        informational_s=result.informational_s,
        excluded_s=result.excluded_s,
        attempts=result.attempts,
        disruptions=result.disruptions,
        last_step=last_step,
        step_time=attrs.asdict(result.step_time),
        ranks=_columns([attrs.asdict(rank) for rank in result.ranks]),
        slowest=None if result.slowest is None else attrs.asdict(result.slowest),
        slice_efficiency={} if efficiency is None else attrs.asdict(efficiency),
        windows=_rolling(model, result, windows_s),
        steps=_steps(model, result, since_ns),
        problems=dict(result.problems),
    )


def _rolling(model: GoodputAccumulator, whole: GoodputResult, windows_s: Sequence[float]) -> dict[str, list[Any]]:
    rows = []
    for length_s in windows_s:
        start_ns = whole.end_ns - round(length_s * NS_PER_S)
        result = model.result(session=whole.session, start_ns=start_ns, end_ns=whole.end_ns)
        rows.append(
            {
                "length_s": length_s,
                "elapsed_s": result.elapsed_s,
                "productive_s": result.productive_s,
                "goodput": result.goodput,
                "badput_s": result.badput_s,
                "disruptions": result.disruptions,
            }
        )
    return _columns(rows) if rows else {}


def _steps(model: GoodputAccumulator, result: GoodputResult, since_ns: int) -> dict[str, list[Any]]:
    ideal_s = result.step_time.ideal_s
    rows = []
    for step in _fresh(model, result, since_ns):
        duration_s = step.net / NS_PER_S
        deviation_s = None if ideal_s is None else abs(duration_s - ideal_s)
        rows.append({"step": step.number, "duration_s": duration_s, "deviation_s": deviation_s})
    return _columns(rows, "step", "duration_s", "deviation_s")


def _fresh(model: GoodputAccumulator, result: GoodputResult, since_ns: int) -> deque[StepTime]:
    """Return the latest steps that ended after *since_ns*, looking no further back than that takes."""
    first_ns = max(since_ns, result.start_ns)
    length_ns = round(_MARGIN * MOST_STEPS * (result.step_time.p50_s or 0.0) * NS_PER_S)
    while True:
        start_ns = max(first_ns, result.end_ns - length_ns)
        steps = model.step_times(session=result.session, start_ns=start_ns, end_ns=result.end_ns)
        fresh = deque((step for step in steps if step.is_sample), MOST_STEPS)
        if start_ns == first_ns or len(fresh) == MOST_STEPS:
            return fresh
        length_ns = _MARGIN * max(length_ns, NS_PER_S)


def _columns(rows: Sequence[dict[str, Any]], *names: str) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in names or rows[0]}

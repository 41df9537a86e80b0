"""Steps that follow each other with nothing between them, read together: one by one they cost half as much again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, le, lt, sub
from typing import Any, Final

from trackside.events import IterationEnded
from trackside.handlers.models.goodput._process import LATEST_NS, NEVER, Process

_INT: Final = frozenset((int,))
_TRAINING: Final = "training"
_columns: Final = attrgetter("_seq", "at_ns", "duration_ns", "step")


def take_steps(process: Process, events: Sequence[IterationEnded]) -> bool:
    """
    Learn from *events*, as if each were taken by itself; False, and nothing is learnt, if any is out of the ordinary.

    Args:
        process: Who published them.
        events: Some that follow each other in its stream; at least one.
    """
    try:
        seqs, ends, lengths, steps = zip(*map(_columns, events), strict=True)
    except AttributeError:  # one was never numbered
        return False
    if not all(_INT.issuperset(map(type, column)) for column in (seqs, ends, lengths, steps)):
        return False
    starts = list(map(sub, ends, lengths))
    track = process.track
    is_in_order = (
        process.next_seq <= seqs[0]
        and NEVER != process.start <= starts[0]
        and track.top <= starts[0]
        and ends[-1] < LATEST_NS
        and 0 <= track.last_step <= steps[0]
        and steps[-1] < LATEST_NS
        and min(lengths) > 0
        and _ascend(seqs, lt)
        and all(map(le, ends, starts[1:]))
        and _ascend(steps, le)
    )
    if not is_in_order or process.is_restored or not _are_plain(process, events):
        return False
    process.next_seq = seqs[-1] + 1
    process.version += len(seqs)
    process.last = max(process.last, ends[-1])
    process.last_iteration_id = events[-1].id
    process.started_at, process.seen_open = NEVER, None
    track.append_steps(steps, starts, ends)
    return True


def _ascend(column: Sequence[int], order: Any) -> bool:
    return all(map(order, column, column[1:]))


def _are_plain(process: Process, events: Iterable[IterationEnded]) -> bool:
    """Return whether all are training steps that did not fail, and none closes what was left open within it."""
    for event in events:
        if event.kind != _TRAINING or event.failed:
            return False
    if process.open_spans:
        parents = {span.parent_id for span in process.open_spans.values()}
        return not any(event.id and event.id in parents for event in events)
    return True

"""The words of goodput: buckets, the codes of slices of time, and the problems that results name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from trackside.events import SpanEnded, SpanStarted, span_names

ELASTIC_SLICE_DOWN: Final = "ELASTIC_SLICE_DOWN"
ELASTIC_SCALE_UP: Final = "ELASTIC_SCALE_UP"
ELASTIC_REINITIALIZATION: Final = "ELASTIC_REINITIALIZATION"
RECOVERY: Final = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
WASTED_PROGRESS: Final = "WASTED_PROGRESS_FROM_DISRUPTION"
CHECKPOINT_RESTORE: Final = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
CHECKPOINT_SAVE: Final = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
VALIDATION: Final = "VALIDATION"
CUSTOM_EVENTS: Final = "CUSTOM_BADPUT_EVENTS"
DATA_LOADING_SYNC: Final = "DATA_LOADING_SYNC"
ACCELERATOR_INITIALIZATION: Final = "ACCELERATOR_INITIALIZATION"
TRAINING_PREP: Final = "TRAINING_PREP"
PROGRAM_STARTUP: Final = "PROGRAM_STARTUP"
PRODUCTIVE: Final = "PRODUCTIVE"
OTHER: Final = "OTHER"
BEFORE_STEPS: Final = "BEFORE_FIRST_STEP"
AFTER_STEPS: Final = "AFTER_LAST_STEP"
"""Not a bucket, nor is ``BEFORE_FIRST_STEP``: both name parts of ``OTHER``."""
DATA_LOADING_ASYNC: Final = "DATA_LOADING_ASYNC"
"""Not a bucket: it is reported beside the buckets, and subtracted from none."""

BUCKETS: Final = (
    ELASTIC_SLICE_DOWN,
    ELASTIC_SCALE_UP,
    ELASTIC_REINITIALIZATION,
    RECOVERY,
    WASTED_PROGRESS,
    CHECKPOINT_RESTORE,
    CHECKPOINT_SAVE,
    VALIDATION,
    CUSTOM_EVENTS,
    DATA_LOADING_SYNC,
    ACCELERATOR_INITIALIZATION,
    TRAINING_PREP,
    PROGRAM_STARTUP,
    PRODUCTIVE,
    OTHER,
)
"""Highest priority first: an instant that could be in several buckets is in the first of them."""

Bucket: TypeAlias = "str | tuple[str, str]"
"""A bucket's name; for custom badput, the name and the type."""
Sums: TypeAlias = "dict[Bucket, int]"
"""Nanoseconds by bucket."""
Stretch: TypeAlias = "tuple[int, int]"
"""Start and end of a stretch of time, in ns since the epoch."""

# Kinds: the activities of a process. A lower number has a higher priority.
KINDS: Final = tuple(bucket for bucket in BUCKETS if bucket not in (RECOVERY, WASTED_PROGRESS, OTHER))
LAST_ELASTIC: Final = KINDS.index(ELASTIC_REINITIALIZATION)
RESTORE: Final = KINDS.index(CHECKPOINT_RESTORE)
SAVE: Final = KINDS.index(CHECKPOINT_SAVE)
CUSTOM: Final = KINDS.index(CUSTOM_EVENTS)
LOADING: Final = KINDS.index(DATA_LOADING_SYNC)
STEP: Final = KINDS.index(PRODUCTIVE)
FIRST_CUSTOM: Final = 16
"""Kinds from here on are types of custom badput, in the order in which the process named them."""

# Flags of a slice of time, below its kind.
FIRST: Final = 1
"""A step begins here."""
INSIDE: Final = 2
"""The slice lies within a step, even if its kind is another one."""
WASTED: Final = 4
"""The same process did the step again from a checkpoint."""
FAILED: Final = 8
"""An exception ended the step."""
UNSAMPLED: Final = 16
"""The step's length does not count among the step times, because its end was not seen."""
FLAGS: Final = FIRST | INSIDE | WASTED | FAILED | UNSAMPLED
KIND_SHIFT: Final = 5

STEP_CODE: Final = STEP << KIND_SHIFT | INSIDE
WHOLE_STEP: Final = STEP_CODE | FIRST
"""The code of a step with nothing else in it, which neither failed nor was done again."""
NO_STEP: Final = -1
"""The value for no step in place of a step's number."""

BY_NAME: Final = {
    span_names.DISTRIBUTED_INIT: KINDS.index(ACCELERATOR_INITIALIZATION),
    span_names.DATALOADER_INIT: KINDS.index(TRAINING_PREP),
    span_names.MODEL_INIT: KINDS.index(TRAINING_PREP),
    span_names.OPTIMIZER_INIT: KINDS.index(TRAINING_PREP),
    span_names.CHECKPOINT_LOAD: RESTORE,
    span_names.CHECKPOINT_SAVE_SYNC: SAVE,
    span_names.CHECKPOINT_SAVE_ASYNC: SAVE,
    span_names.CHECKPOINT_SAVE_FINALIZATION: SAVE,
    span_names.VALIDATION_LOOP: KINDS.index(VALIDATION),
    span_names.TESTING_LOOP: KINDS.index(VALIDATION),
    span_names.VALIDATION_ITERATION: KINDS.index(VALIDATION),
    span_names.TESTING_ITERATION: KINDS.index(VALIDATION),
    span_names.TESTING_ITERATION_ALIAS: KINDS.index(VALIDATION),
    span_names.DATA_LOADING: LOADING,
}
EVALUATION: Final = KINDS.index(VALIDATION)
OWN_THREAD_ONLY: Final = frozenset({SAVE, LOADING})
"""Kinds that block the training thread only when they happen on it."""
PEER_NAMES: Final = {ACCELERATOR_INITIALIZATION: "TPU_INITIALIZATION"}
"""The other names of buckets in ml-goodput-measurement and in the dashboards made for it."""
_MARKABLE: Final = {
    **{name: kind for kind, name in enumerate(KINDS) if kind not in (CUSTOM, STEP)},
    **{name: KINDS.index(bucket) for bucket, name in PEER_NAMES.items()},
}
"""The kind of a span by its attribute ``badput_type``; any other value is a type of custom badput."""


def priority(code: int) -> int:
    """Return the position of *code*'s kind in the order of priority; all types of custom badput share one."""
    kind = code >> KIND_SHIFT
    return CUSTOM if kind >= FIRST_CUSTOM else kind


def kind_of(span: SpanStarted | SpanEnded) -> int | str | None:
    """Return the kind of time of *span*; for custom badput, its type; None if it has no kind."""
    marked = span.attributes.get(span_names.BADPUT_TYPE) if span.attributes else None
    if marked is not None:
        return _MARKABLE.get(marked, str(marked)) if isinstance(marked, str) else str(marked)
    return BY_NAME.get(span.name)


def add(total: dict[Any, int], more: Mapping[Any, int]) -> None:
    """Add *more* to *total*, key by key."""
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


def subtract(total: dict[Any, int], less: Mapping[Any, int]) -> None:
    """Subtract *less* from *total*, key by key; remove each key whose value becomes zero."""
    for key, value in less.items():
        left = total.get(key, 0) - value
        if left:
            total[key] = left
        else:
            total.pop(key, None)


class Problem:
    """The problems of the input, as results name them."""

    IMPOSSIBLE_TIME: Final = "an impossible time"
    MALFORMED: Final = "a malformed event"
    REPEATED: Final = "a record that was there already"
    OUT_OF_ORDER: Final = "a step out of order"
    OVERLAPPING_STEPS: Final = "a step that began before the last one ended"
    COUNTED_ANEW: Final = "steps counted anew without a checkpoint loaded"
    NO_END: Final = "a span without an end"
    DROPPED: Final = "an event that was given up for lack of room"
    SECOND_WRITER: Final = "a second process of the same rank at the same time"
    OVERLAPPING_ATTEMPTS: Final = "an attempt that began before the last one fell silent"
    NO_GOOD_END: Final = "an attempt without an end: it runs, or fell silent"
    OTHER_SESSIONS: Final = "another session"
    NAME_USED_AGAIN: Final = "a run that began anew after a good end: the session's name may have been used again"
    OTHER_RANKS: Final = "a rank of which no events are here: the figures are of the others alone"
    EARLIER_UNREAD: Final = "earlier attempts that were not read"

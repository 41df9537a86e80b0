"""Admission to the dispatcher's queue: which events of a type are let in, and which are dropped and counted."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sized
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trackside._free_threading import FREE_THREADED, LANES, immortal, shared
from trackside._implementation import native
from trackside.bus._queue import Entry, Queue, QueueByLane, now_ns
from trackside.core import CountByLane, ThreadSafeCount
from trackside.events import ITERATION, LIFECYCLE, PROFILE, Event, HandlerSuspended, Priority, SpanEnded
from trackside.wire import changeable_fields, detached_event, size_of, sized_fields

if TYPE_CHECKING:
    from trackside.bus._subscribers import Step

QUEUE_LIMIT: Final = 16_384
"""The most events that the queue holds."""

PLACE_BYTES: Final = 4_096
"""
An event whose values take more memory takes as many places of the queue, so all that wait take 64 MiB at most.

An empty queue admits any event.
"""
_SHORT_NAME: Final = 256
_OF_SPANS: Final = ("name", "attributes")
"""The fields of a span's end that may be large; an end declared elsewhere may have more."""

NEVER: Final = immortal(math.inf)
"""More than any count."""

# The share of the queue that each priority may fill.
_SHARE: Final = {PROFILE: 1 / 2, ITERATION: 4 / 5, LIFECYCLE: 1.0}
_WAKE_SHARE: Final = 3 / 4
"""The part of its share at which an event wakes the dispatcher."""
_ASK_EVERY: Final = 64
"""At most one in so many events of a lane asks for room."""


class _Sizing:
    """The common part of both kinds of admission: copies and sizes of events."""

    __slots__ = ()

    changeable: tuple[str, ...]
    """The fields with values that their owner could change while the event waits."""
    sized: tuple[str, ...]
    """The fields that may be large; all that can be changed are among them, but for the error of a span's end."""
    admit: Any

    def admit_sized(self, event: Any) -> None:
        """Admit *event*, or a copy if it can be changed, at as many places as it takes."""
        detached = detached_event(event, self.changeable) if self.changeable else event
        places = size_of(detached, self.sized) // PLACE_BYTES + 1
        self.admit(detached, places)  # the last line: see `is_settled`

    def admit_span(self, event: Any) -> None:
        """Do the same with the end of a span, which is small unless it has attributes or a long name."""
        is_small = not event.attributes and type(event.name) is str and len(event.name) <= _SHORT_NAME
        (self.admit if is_small else self.admit_sized)(event)  # the last line: see `is_settled`

    def admit_of(self, cls: type[Event]) -> Callable[[Any], None]:
        """Return the function that admits events of *cls*."""
        # A function in Python: after a call into C the interpreter may run a signal handler, and its exception would
        # not show that the event was admitted.
        if not self.sized:
            plain: Callable[[Any], None] = self.admit
            return plain
        return self.admit_span if issubclass(cls, SpanEnded) and self.sized == _OF_SPANS else self.admit_sized


class Admission(_Sizing):
    """
    Admits events of one type, and counts them on both sides of the queue.

    ``offered = taken + dropped + in the queue``, each counted where it happens: offered and dropped by the thread that
    logs, taken, and the invalid and redacted among them, by the dispatcher.
    """

    __slots__ = (
        "_append",
        "_changeable_at",
        "_limit",
        "_most",
        "_queue",
        "_sized_at",
        "_wake",
        "_wake_at",
        "ceiling",
        "changeable",
        "cls",
        "dropped",
        "failed",
        "fill",
        "invalid",
        "offered",
        "redacted",
        "sized",
        "suppressed",
        "taken",
    )

    def __init__(self, cls: type[Event], queue: Queue | QueueByLane, limit: int, wake: Callable[[], object]) -> None:
        self.cls = cls
        self.offered = CountByLane()
        self.dropped = ThreadSafeCount()
        self.failed = self.dropped
        """An event that could not even be queued, because memory or the stack is short, is dropped."""
        self.suppressed = ThreadSafeCount()
        self.taken = 0
        self.invalid = 0
        self.redacted = 0
        self.ceiling: float = NEVER
        self._queue: Sized = queue
        self._append = shared(queue.append)
        self.fill = queue.fill
        self.changeable = shared(changeable_fields(cls))
        self.sized = shared(sized_fields(cls))
        # For the compiled core, which has no need of names then; None if a field is no slot.
        self._changeable_at = native.slot_offsets(cls, self.changeable) if native is not None else None
        self._sized_at = native.slot_offsets(cls, self.sized) if native is not None else None
        self._wake = wake
        self._most = immortal(max(1, int(limit * _SHARE[Priority(cls.priority)])))
        self._wake_at = self._limit = immortal(max(1, int(self._most * _WAKE_SHARE)))
        shared(self)

    def step(self) -> Step:
        """Return this admission's step on a route."""
        return self.offered.add, self.admit_of(self.cls), None, self

    def admit(self, event: Event, places: int = 1) -> None:
        """Queue *event* if there are as many *places* for its priority, else count it as dropped."""
        # Threads that ask at the same moment may overshoot by one each; a lock would cost more than that.
        if (places == 1 and len(self._queue) < self._limit) or self.has_room(places):
            if places > 1:
                self.fill(places - 1)
            self._append(event)  # the last line: see `is_settled`

    def has_room(self, places: int = 1) -> bool:
        """Return whether the queue has as many *places* for this priority; else count the event as dropped."""
        waiting = len(self._queue)
        if waiting:
            waiting += places - 1
        is_first = self._limit <= waiting and self._limit < self._most
        if is_first:  # the first one since the dispatcher's last visit; later events pay nothing for this
            self._limit = self._most
            self._wake()
        if waiting < self._most:
            return True
        return self.dropped.add() < 0  # the last line: see `is_settled`

    def reset(self) -> None:
        """Note a visit of the dispatcher: the next event that finds the queue filling wakes it again."""
        self._limit = self._wake_at

    def offer(self, event: Event) -> None:
        """Do what `Bus.log` does with the step: count *event*, and queue it if there is room."""
        self.offered.add()
        self.admit(event)

    def interrupt(self, error: BaseException) -> None:
        """Account for an event whose admission was interrupted by *error* of a signal handler."""
        if not is_settled(error, *_SETTLING):
            self.dropped.add()

    def fail(self, error: BaseException) -> HandlerSuspended | None:  # noqa: ARG002  the protocol's
        """Count an event that could not even be queued: memory is short."""
        self.dropped.add()
        return None


class AdmissionByLane(Admission):
    """
    Admits events of one type where each lane has a deque of its own.

    To add up the lengths of all deques takes time, so only one event in some asks for room: each lane may exceed the
    share by fewer events than that.
    """

    __slots__ = ("ask_every",)

    _queue: QueueByLane

    def __init__(self, cls: type[Event], queue: QueueByLane, limit: int, wake: Callable[[], object]) -> None:
        super().__init__(cls, queue, limit, wake)
        self.ask_every = immortal(max(1, min(_ASK_EVERY, self._most // LANES)))

    def step(self) -> Step:
        """Return the step on a route of this thread's lane."""
        lane = LaneAdmission(self, self._queue.of_lane())
        return self.offered.add, lane.admit_of(self.cls), None, self

    def admit(self, event: Event, places: int = 1) -> None:
        """Queue *event* if there are as many *places* for its priority, else count it as dropped."""
        LaneAdmission(self, self._queue.of_lane()).admit(event, places)


class LaneAdmission(_Sizing):
    """Admits the events of one type that the threads of one lane log."""

    __slots__ = ("_admission", "_append", "_ask_every", "_entries", "_fill", "changeable", "sized")

    def __init__(self, admission: AdmissionByLane, entries: deque[Entry]) -> None:
        self._admission = admission
        self._entries = entries
        self._append = entries.append
        self._fill = admission.fill
        self.changeable = admission.changeable
        self.sized = admission.sized
        self._ask_every = admission.ask_every

    def admit(self, event: Event, places: int = 1) -> None:
        """Queue *event* if there are as many *places* for its priority, else count it as dropped."""
        if (places == 1 and len(self._entries) % self._ask_every) or self._admission.has_room(places):
            if places > 1:
                self._fill(places - 1)
            entry = now_ns(), event
            self._append(entry)  # the last line: see `is_settled`


make_admission: Final[Callable[..., Admission]] = AdmissionByLane if FREE_THREADED else Admission


def is_settled(error: BaseException, *codes: CodeType) -> bool:
    """
    Return whether *error* interrupted the innermost of *codes* on its last line.

    Python runs signal handlers after a call has returned. So if the last line of a function is the call that counts an
    event, an exception of a signal handler on that line comes after the event was counted.
    """
    is_last = False
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in codes:
            is_last = trace.tb_lineno == max(line for *_, line in code.co_lines() if line is not None)
        trace = trace.tb_next
    return is_last


_SETTLING: Final = (
    Admission.admit.__code__,
    _Sizing.admit_sized.__code__,
    _Sizing.admit_span.__code__,
    Admission.has_room.__code__,
    LaneAdmission.admit.__code__,
)

Admissions: TypeAlias = Mapping[type[Event], Admission]


def dropped_by_name(admissions: Admissions) -> dict[str, int]:
    """Return the drops of the queue so far, by wire name; a class declared anew has its predecessor's."""
    counts: dict[str, int] = {}
    for admission in list(admissions.values()):
        dropped = admission.dropped.value
        if dropped:
            counts[admission.cls.wire_name] = counts.get(admission.cls.wire_name, 0) + dropped
    return counts

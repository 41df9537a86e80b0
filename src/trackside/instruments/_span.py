"""
The span: a named stretch of time in one thread or task, within another span.

Spans that are opened or closed out of order are published as such, and tolerated unless the bus is strict.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackside._free_threading import LANES, immortal, kept, shared
from trackside._implementation import native
from trackside._platform import after_fork_in_child
from trackside.bus import default_bus
from trackside.core import is_from_signal_handler
from trackside.events import (
    ITERATION,
    LIFECYCLE,
    NOWHERE,
    PROFILE,
    Ambient,
    ConfigError,
    IterationSpanEnded,
    Priority,
    ProfileSpanEnded,
    SpanEnded,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    TracksideError,
    ambient,
    clock,
    span_names,
)
from trackside.events._ambient import next_id
from trackside.instruments._raised import NO_ERRORS, describe
from trackside.instruments._section import with_each_call
from trackside.wire import detached

if TYPE_CHECKING:
    from typing_extensions import Self


class SpanOrderError(TracksideError):
    """A span was opened or closed out of order, and the bus is strict."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"span {self.name!r} {self.problem}"


class RunError(TracksideError):
    """A framework's run ended with an exception that it did not pass on."""

    def __str__(self) -> str:
        return "the run ended with an exception that the framework did not pass on"


def report_out_of_order(name: str, problem: str, *, span_id: int = 0, may_raise: bool = True) -> None:
    """
    Publish that the span *name* was opened or closed out of order.

    Raises:
        SpanOrderError: if the default bus is strict and *may_raise* is true.
    """
    if default_bus.wants(SpanOutOfOrder):
        default_bus.log(SpanOutOfOrder(name=name, problem=problem, span_id=span_id))
    if default_bus.strict and may_raise:
        raise SpanOrderError(name, problem)


def tolerated(name: str, error: ConfigError) -> None:
    """
    Publish that the span *name* was given something wrong, which is ignored.

    A training script must not end at its thousandth step because of a wrong argument to its telemetry.

    Raises:
        ConfigError: *error*, if the default bus is strict.
    """
    if default_bus.strict:
        raise error
    report_out_of_order(name, f"was given something wrong: {error}")


F = TypeVar("F", bound=Callable[..., Any])

ENDED: Final[dict[Priority, type[SpanEnded]]] = {
    LIFECYCLE: kept(SpanEnded),
    ITERATION: kept(IterationSpanEnded),
    PROFILE: kept(ProfileSpanEnded),
}
"""The class of the event that a span of each priority publishes at its end."""

LOGGER: Final = logging.getLogger("trackside")

_log: Final = shared(default_bus.log)
_wants: Final = shared(default_bus.wants)
_get_ident: Final = threading.get_ident
_surroundings: Final = shared(ambient.get)
_surround: Final = shared(ambient.set)
_NO_ATTRIBUTES: Final[dict[str, Any]] = kept({})
"""Shared by all events without attributes: fewer objects for the queue and for the garbage collector."""
_new_span: Final[Callable[[type[Span]], Span]] = shared(object.__new__)
_new_event: Final[Callable[[Any], Any]] = shared(object.__new__)

open_by_id: Final[dict[int, Span]] = shared({})
"""The open spans of the first lane; with an interpreter lock it is the only lane."""
open_by_lane: Final[tuple[dict[int, Span], ...]] = shared((open_by_id, *(shared({}) for _ in range(1, LANES))))
"""
The open spans of this process by their ids, for the lane of the thread that opened them.

Those that the compiled core keeps itself are missing here: see `opened`.
"""
_root_id = 0
_main_thread = immortal(threading.main_thread().ident)
annotator: Callable[[str], Callable[[], object]] | None = None

_monotonic_ns = clock.monotonic_ns
_offset_ns = clock.offset_ns


@clock.follow
def _set_clock(monotonic_ns: Callable[[], int], offset_ns: int) -> None:
    global _monotonic_ns, _offset_ns  # copies: they save each span four look-ups in another module
    _monotonic_ns, _offset_ns = monotonic_ns, offset_ns


def opened() -> dict[int, Span]:
    """Return every open span of this process by its id, in the order in which they were opened."""
    found: dict[int, Span] = {}
    if native is not None:
        native.add_open(found)  # first: these may move to the dict meanwhile
    for spans in open_by_lane:
        found |= spans.copy()
    return dict(sorted(found.items()))


def forget_opened() -> None:
    """Forget the open spans of all threads."""
    if native is not None:
        native.store_open()
    for spans in open_by_lane:
        spans.clear()


class Span:
    """
    A named stretch of time; made by `span` and its siblings.

    As a context manager it is open while its block runs, and everything logged inside belongs to it. It can be
    used again once it is closed. As a decorator it makes a span of its own for each call, so it serves threads,
    tasks and recursion. `open` and `close` are for code that has no block.

    While no handler wants it, it has no id, reads no clock and publishes nothing.

    Attributes:
        name: What it is called.
        id: Its number in this process, from 1; 0 until it is open, and while no handler wants it.
        parent_id: The span around it; 0 for none.
        start_ns: When it was opened, in ns since the epoch.
        attributes: What is known of it so far.
    """

    __slots__ = (
        "_around",
        "_end_annotation",
        "_ended",
        "_given",
        "_inside",
        "_thread",
        "attributes",
        "id",
        "name",
        "parent_id",
        "start_ns",
    )

    id: int
    parent_id: int
    start_ns: int
    attributes: dict[str, Any]
    _around: Ambient
    _thread: int
    _end_annotation: Callable[[], object] | None

    def __init__(self, name: str, ended: type[SpanEnded], attributes: dict[str, Any]) -> None:
        self.name: str = name
        self.id: int = 0
        self.attributes: dict[str, Any] = attributes
        self._given = attributes
        self._ended = ended
        self._inside: Ambient | None = None

    def open(self, *, at_ns: int | None = None) -> Self:
        """
        Begin, within the innermost open span of this thread or task.

        Args:
            at_ns: When it began, in ns since the epoch; now unless given.
        """
        if self._inside is not None:
            self._close_before_reopening(at_ns)
        if _wants(self._ended) or annotator is not None:
            around = _surroundings()
            try:
                self._enter(around, around[1], at_ns)
            except BaseException:
                self._withdraw(around)
                raise
            if self._ended is SpanEnded:
                try:
                    self._publish_start()
                except BaseException as error:  # no block begins, so nothing else would end the span
                    self._leave(None, error, None)
                    raise
        else:
            self.id = 0
        return self

    __enter__ = open  # noqa: A003  the method above is meant

    def close(self, *, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """
        Close the span.

        Args:
            at_ns: When it ended, in ns since the epoch; now unless given.
            error: The exception that ended it.
        """
        end_ns = _offset_ns + _monotonic_ns() if at_ns is None else at_ns
        if self._inside is not None:
            if self.id and end_ns < self.start_ns:
                report_out_of_order(self.name, "ended before it started", span_id=self.id, may_raise=False)
                end_ns = self.start_ns
            self._leave(None, error, None, end_ns)
        elif self.id:
            report_out_of_order(self.name, "was closed again", span_id=self.id, may_raise=error is None)

    def _enter(self, around: Ambient, step: int, at_ns: int | None) -> None:
        self._around = around
        self.id = number = next_id()
        self.parent_id = around[0] or _root_id
        self.attributes = self._given
        self._thread = _get_ident()
        self._inside = inside = number, step
        _surround(inside)
        open_by_lane[self._thread % LANES][number] = self
        if annotator is not None:
            self._start_annotation()
        self.start_ns = _offset_ns + _monotonic_ns() if at_ns is None else at_ns

    def _leave(
        self,
        kind: type[BaseException] | None,  # noqa: ARG002  it is what __exit__ is given
        error: BaseException | None,
        trace: TracebackType | None,  # noqa: ARG002
        end_ns: int | None = None,
    ) -> None:
        # All in one function: between the kernels of a model each call costs time.
        inside, self._inside = self._inside, None
        if inside is None:
            if self.id:
                self.close(error=error)
            return
        try:
            if end_ns is None:
                end_ns = _offset_ns + _monotonic_ns()
            around, number = self._around, self.id
            spans = open_by_lane[self._thread % LANES]
            if _surroundings() is inside and annotator is None and spans.pop(number, None) is self:
                _surround(around)
            elif not self._step_out(inside):
                return
            attributes = self.attributes
            if self._thread != _main_thread and span_names.THREAD not in attributes:
                attributes = {**attributes, span_names.THREAD: threading.current_thread().name}
            # Filled without the constructor, whose ten keywords would cost three times as much: a third of a span.
            ended = _new_event(self._ended)
            ended.at_ns = end_ns
            ended.span_id = number
            ended.parent_span_id = self.parent_id
            ended.step = around[1]
            ended.name = self.name
            ended.duration_ns = end_ns - self.start_ns
            ended.attributes = detached(attributes) if attributes else _NO_ATTRIBUTES
            if error is None or isinstance(error, NO_ERRORS):
                ended.error = None
            else:
                ended.error = describe(error, number, name=self.name, step=around[1], at_ns=end_ns)
        except BaseException as raised:
            if self._is_reopened(raised, inside):
                self._leave(None, error or raised, None, end_ns)
            raise
        _log(ended)

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...
    else:
        __exit__ = _leave

    def _step_out(self, inside: Ambient | None) -> bool:
        """Leave in any but the plain case; False in a child forked inside the span: the parent records the end."""
        is_innermost = _surroundings() is inside
        if is_innermost:
            _surround(self._around)
        if native is not None:
            native.store_open()
        if open_by_lane[self._thread % LANES].pop(self.id, None) is not self:
            return False
        if not is_innermost:
            self._leave_out_of_order()
        if annotator is not None:
            self._stop_annotation()
        return True

    def _withdraw(self, around: Ambient) -> None:
        """Restore the state before `_enter`, which was interrupted."""
        if self._inside is not None:
            if native is not None:
                native.store_open()
            open_by_lane[self._thread % LANES].pop(self.id, None)
            if _surroundings() is self._inside:
                _surround(around)
            if annotator is not None:
                self._stop_annotation()
        self._inside = None
        self.id = 0

    def _is_reopened(self, raised: BaseException, inside: Ambient) -> bool:
        """If a signal handler raised *raised*, restore the state before `_leave`: the end is still to be recorded."""
        if not isinstance(raised, KeyboardInterrupt) and not is_from_signal_handler(raised):
            return False
        if native is not None:
            native.store_open()
        open_by_lane[self._thread % LANES][self.id] = self
        _surround(inside)
        self._inside = inside
        return True

    def _close_before_reopening(self, at_ns: int | None) -> None:
        report_out_of_order(self.name, "was opened again while open", span_id=self.id)
        self.close(at_ns=at_ns)

    def _publish_start(self) -> None:
        if self._thread != _main_thread:
            self.set(**{span_names.THREAD: threading.current_thread().name})
        _log(
            SpanStarted(
                at_ns=self.start_ns,
                span_id=self.id,
                parent_span_id=self.parent_id,
                name=self.name,
                attributes=self.attributes,
            )
        )

    def _leave_out_of_order(self) -> None:
        """End while another span is the innermost: one inside this that is still open, or one of another task."""
        still_open = opened()
        inner = still_open.get(_surroundings()[0])
        while inner is not None and inner.parent_id != self.id:
            inner = still_open.get(inner.parent_id)
        if inner is None:
            problem = "was closed in another thread or task than it was opened in"
        else:
            inner._around = self._around  # noqa: SLF001  so that closing it leads out of this one too
            problem = "was closed before what was opened inside it"
        # Nothing is raised: the span ends, in whatever order.
        report_out_of_order(self.name, problem, span_id=self.id, may_raise=False)

    def _start_annotation(self) -> None:
        try:
            self._end_annotation = annotator(self.name) if annotator is not None else None
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._end_annotation = None
            _drop_annotator(error)

    def _stop_annotation(self) -> None:
        end, self._end_annotation = getattr(self, "_end_annotation", None), None
        try:
            if end is not None:
                end()
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            _drop_annotator(error)

    def set(self, **attributes: Any) -> None:
        """Add to the span's attributes; they are recorded when it ends."""
        # The dict is never changed in place: an event that was published with it may still have to be encoded.
        self.attributes = {**self.attributes, **attributes}

    def event(self, name: str, /, **attributes: Any) -> None:
        """Record that something happened within the span."""
        if self.id and _wants(SpanEventAdded):
            _log(SpanEventAdded(span_id=self.id, name=name, attributes=attributes))

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed since, and a handler wants it."""
        return self._inside is not None

    @property
    def thread_id(self) -> int:
        """The thread that opened it, as `threading.get_ident` names it."""
        return self._thread

    def __call__(self, function: F) -> F:
        """
        Return *function* with a span around each call; for a coroutine function, around each run.

        Raises:
            ConfigError: for a generator function: the call only makes the generator, its work comes later.
        """
        return with_each_call(function, self._fresh, "span")

    def _fresh(self) -> Span:
        """Return a new span like this one, for one call of a decorated function."""
        return Span(self.name, self._ended, self._given)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} id={self.id} {'open' if self.is_open else 'closed'}>"


def _show_core() -> None:
    """Give the compiled core the values that it would otherwise look up in this module for each span."""
    if native is not None:
        native.set_process(_root_id, _main_thread, annotator is not None)


if native is not None:
    _show_core()
    _open, _close = native.compile_spans(Span, tuple(ENDED.values()), globals())
    _methods = {"open": _open, "_leave": _close}
    _methods |= {"__enter__": native.special_method(_open), "__exit__": native.special_method(_close)}
    for _name, _method in _methods.items():
        setattr(Span, _name, _method)

make_span: Final[Callable[[str, type[SpanEnded], dict[str, Any]], Span]] = Span if native is None else native.make_span
"""Returns a span; without the cost of calling a class in Python."""


def span(name: str, /, *, priority: Priority = ITERATION, **attributes: Any) -> Span:
    """
    Return a span; use it with ``with``, or as a decorator.

    ::

        with span("tokenize", files=len(paths)) as work:
            work.set(tokens=tokenize(paths))

    Args:
        name: What it is called; the same for all spans of a kind.
        priority: How much it matters. A span of priority `LIFECYCLE` is published at its start too, so that a crash
            cannot lose it; one that comes several times a step should be of priority `PROFILE`.
        attributes: What is known of it at its start. ``badput_type`` marks its time as lost, of that type.
    """
    if native is not None:
        return make_span(name, _ended_at(name, priority), attributes)
    # Filled without the constructor, like events: calling the class would cost a twentieth of a span more.
    made = _new_span(Span)
    made.name = name
    made.id = 0
    made.attributes = made._given = attributes  # noqa: SLF001  of our own class, here and below
    # The common case first: the hash of an enum's member is computed in Python.
    made._ended = IterationSpanEnded if priority is ITERATION else _ended_at(name, priority)  # noqa: SLF001
    made._inside = None  # noqa: SLF001
    return made


if native is not None:
    span = native.compile_named(span, None, IterationSpanEnded)


def _ended_at(name: str, priority: Priority) -> type[SpanEnded]:
    try:
        return ENDED[Priority(priority)]
    except ValueError:
        tolerated(name, ConfigError("priority", priority, "give LIFECYCLE, ITERATION or PROFILE"))
        return IterationSpanEnded


def become_root(number: int) -> None:
    """Make span *number* the parent of all spans from now on that have no span around them; 0 for no parent."""
    global _root_id  # noqa: PLW0603  a process has one root
    _root_id = number
    _show_core()


def set_annotator(annotate: Callable[[str], Callable[[], object]] | None) -> None:
    """Call *annotate* with the name of each span that opens, and the function that it returns when the span closes."""
    global annotator  # noqa: PLW0603  a process has one profiler
    annotator = annotate
    _show_core()


def _drop_annotator(error: Exception) -> None:
    """Stop using a profiler that fails; training continues."""
    set_annotator(None)
    LOGGER.warning("spans are not shown in the profiler any more: %s: %s", type(error).__name__, error)


def _become_child() -> None:
    """Start without open spans in a forked child; those around the fork are the parent's."""
    global _main_thread  # noqa: PLW0603
    _main_thread = immortal(_get_ident())
    forget_opened()
    become_root(0)
    _surround(NOWHERE)


after_fork_in_child(_become_child)


_OF_EVALUATION: Final = frozenset(
    {
        span_names.VALIDATION_LOOP,
        span_names.TESTING_LOOP,
        span_names.VALIDATION_ITERATION,
        span_names.TESTING_ITERATION,
    }
)


def withdraw(span: Span) -> None:
    """Leave *span* unrecorded, if it is open. Its start must not have been published as a `SpanStarted`."""
    if span.is_open:
        span._withdraw(span._around)  # noqa: SLF001  of our own class


def is_innermost(span: Span) -> bool:
    """Return whether *span* is the innermost open one of the calling thread or task."""
    return ambient.get()[0] == span.id


def is_within(span: Span, other: Span) -> bool:
    """Return whether *span* was opened inside *other*, at any depth, and both are open."""
    spans = opened()
    around = spans.get(span.parent_id) if span.id else None
    while around is not None and around is not other:
        around = spans.get(around.parent_id)
    return around is not None


def is_evaluating() -> bool:
    """Return whether any span of a validation or a test is open in this process."""
    return any(span.name in _OF_EVALUATION for span in list(opened().values()))


def open_spans() -> dict[str, list[Any]]:
    """
    Return the innermost open span of each thread, by the thread's name: id, name and start (ns since the epoch).

    A `Heartbeat` carries these. If tasks share a thread, the span that was opened last counts.
    """
    innermost: dict[int, Span] = {}
    for found in list(opened().values()):
        known = innermost.get(found.thread_id)
        if known is None or found.id > known.id:
            innermost[found.thread_id] = found
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    spans: dict[str, list[Any]] = {}
    for ident, found in innermost.items():
        name = names.get(ident, f"thread {ident}")
        spans[f"{name} ({ident})" if name in spans else name] = [found.id, found.name, found.start_ns]
    return spans

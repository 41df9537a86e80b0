"""The event: a fact in the past tense, typed, declared once and found by its wire name."""

from __future__ import annotations

import enum
import functools
import importlib
import re
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import attrs

from trackside._free_threading import immortal, shared
from trackside._implementation import native
from trackside._platform import MONOTONIC_IS_POSIX
from trackside.events import clock
from trackside.events._ambient import ambient
from trackside.events._errors import ConfigError, DuplicateEventError
from trackside.events._fields import ENVELOPE, MAX_NAME_LENGTH, Compared, check_schema, fields_in, own_fields
from trackside.events._settings import suggests_settings
from trackside.events._source import Source, process_source

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_MAX_VERSION = 65_535
_TAKEN = frozenset({"source", "seq", "wire_name", "version", "priority", "derived"})
_MAIN = frozenset({"__main__", "__mp_main__"})
_OWN = "trackside."
# Modules of events that an import of trackside leaves out, because making their classes takes long.
_LATER = tuple(f"trackside.events.{name}" for name in ("goodput", "metrics", "remote", "sections", "training"))

_classes: dict[str, type[Event]] = {}
_declared: weakref.WeakSet[type[Event]] = weakref.WeakSet()


def check_names(name: object, version: object) -> None:
    """
    Check the wire name and the version of an event class.

    Raises:
        ConfigError: if the name or the version is malformed.
    """
    if not (isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name)):
        raise ConfigError(
            "event name",
            name,
            f'give a lower-case dotted name of at most {MAX_NAME_LENGTH} characters, as "acme.batch.skipped"',
        )
    if type(version) is not int or not 1 <= version <= _MAX_VERSION:
        raise ConfigError("event version", version, f"give a whole number from 1 to {_MAX_VERSION}")


def register(cls: type[Event]) -> None:
    """
    Make *cls* known under its wire name.

    A class that is declared again (a reloaded module, a notebook cell run twice) replaces the older class.

    Raises:
        ConfigError: if a field's name is reserved, or the names are too long or too many.
        DuplicateEventError: if another class has the name.
    """
    fields = own_fields(cls)
    taken = sorted(_TAKEN.intersection(fields))
    if taken:
        raise ConfigError(
            f"field {taken[0]!r} of {cls.__qualname__}", taken[0], "every event has it already; rename it"
        )
    try:
        check_schema(cls.wire_name, cls.version, fields)
    except ValueError as error:
        raise ConfigError(f"fields of {cls.__qualname__}", len(fields), str(error)) from None
    holder = _classes.get(cls.wire_name) if cls.__module__.startswith(_OWN) else lookup(cls.wire_name)
    if holder is not None and not _is_redeclared(holder, cls):
        raise DuplicateEventError(cls.wire_name, holder, cls)
    _classes[cls.wire_name] = cls
    _declared.add(cls)


def _is_redeclared(holder: type, cls: type) -> bool:
    return holder.__qualname__ == cls.__qualname__ and (
        holder.__module__ == cls.__module__ or not _MAIN.isdisjoint((holder.__module__, cls.__module__))
    )


def lookup(name: str) -> type[Event] | None:
    """Return the class declared as *name*, or None."""
    if name not in _classes and name.startswith(_OWN):
        _load_all()
    return _classes.get(name)


def _load_all() -> None:
    for module in _LATER:
        importlib.import_module(module)


def is_declared(cls: type) -> bool:
    """
    Return whether *cls* itself, not only a base of it, was declared with ``@event``.

    This is also true for a class that was declared again since: code that keeps the older class can still publish.
    """
    return cls in _declared


def declared() -> dict[str, type[Event]]:
    """Return a copy of the table of wire names, sorted."""
    _load_all()
    return dict(sorted(_classes.items()))


class Priority(enum.IntEnum):
    """
    The priority of an event class.

    A property of the class, so it costs nothing per event. A full queue refuses the lowest level first.
    """

    PROFILE = 1
    """Several per training step."""
    ITERATION = 2
    """One per training step or so."""
    LIFECYCLE = 3
    """Job, loops, checkpoints, reports; refused last."""


PROFILE = Priority.PROFILE
"""`Priority.PROFILE`: several events per training step, for example spans of its parts; refused first."""
ITERATION = Priority.ITERATION
"""`Priority.ITERATION`: one event per training step or so; the priority unless a class is declared with another."""
LIFECYCLE = Priority.LIFECYCLE
"""`Priority.LIFECYCLE`: the events of the job, its loops, checkpoints and reports; refused last."""

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Do nothing: only type checkers need the marker."""
        return lambda declare: declare


C = TypeVar("C", bound=type)

FROM_AMBIENT: Final = immortal(-(1 << 64))
"""
The default of an envelope field, which is then filled from the clock or the ambient context.

It is a number that no event can hold: without the interpreter lock, an equal constant in a program is the same object.
"""

_surroundings = shared(ambient.get)


class _Stamped(Compared):
    """
    The source and the number of an event.

    These two slots are not fields: emission never touches them. The dispatcher writes them when it numbers
    the event, the decoder when it reads one.
    """

    __slots__ = ("_seq", "_source")

    _seq: int
    _source: Source

    @property
    def source(self) -> Source:
        """The process that the event comes from; this process, until the event is numbered."""
        try:
            return self._source
        except AttributeError:
            return process_source()

    @property
    def seq(self) -> int | None:
        """
        The event's number in its source's stream; None until the dispatcher numbered it.

        It numbers what `log()` queued, which may be a copy: an event that the program holds may never get a number.
        """
        try:
            return self._seq
        except AttributeError:
            return None


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
def _define(cls: C, *, kw_only: bool = True) -> C:
    # "Frozen" is only for the type checker: attrs.frozen would make building an event three times as expensive.
    # Copies carry all slots, also those of `_Stamped`: the ``getstate`` of attrs would carry only the fields.
    return attrs.define(
        kw_only=kw_only,
        weakref_slot=False,
        getstate_setstate=False,
        eq=False,
        repr=False,
        field_transformer=_keep_envelope_positional,
    )(cls)


def _keep_envelope_positional(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    # Before attrs 25.4 a class with keyword-only fields made those that it inherits keyword-only as well.
    return [
        field.evolve(kw_only=False) if field.default is FROM_AMBIENT and field.name in ENVELOPE else field
        for field in fields
    ]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
def _define_envelope(cls: C) -> C:
    # For Python the envelope is positional: defaults of keyword-only arguments are looked up one by one, which costs
    # a tenth of building an event. Type checkers see keyword-only arguments, as for every field.
    return _define(cls, kw_only=False)


_monotonic_ns = clock.monotonic_ns
_offset_ns = clock.offset_ns


@clock.follow
def _set_clock(monotonic_ns: Callable[[], int], offset_ns: int) -> None:
    global _monotonic_ns, _offset_ns
    _monotonic_ns, _offset_ns = monotonic_ns, offset_ns
    if native is not None:
        native.set_clock(monotonic_ns, offset_ns, monotonic_ns is time.monotonic_ns and MONOTONIC_IS_POSIX)


if native is not None:
    native.set_mark(FROM_AMBIENT)
    _set_clock(_monotonic_ns, _offset_ns)


@_define_envelope
class Event(_Stamped):
    """
    The envelope of every event.

    Type checkers see events as frozen. At run time nothing stops a mutation, and encoding happens later, on another
    thread. So `log()` queues a copy of an event that has lists, maps or other values that can be changed, and the
    compiled core one of each event that the program still holds: they are recorded as they were. In pure Python, a
    field of an event of scalars that is assigned anew after `log()` may be recorded changed.
    """

    wire_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    priority: ClassVar[Priority] = ITERATION
    derived: ClassVar[bool] = False
    if TYPE_CHECKING:
        __attrs_attrs__: ClassVar[Any]  # so that type checkers let `attrs.fields` and `attrs.asdict` take events

    at_ns: int = FROM_AMBIENT
    """The time when it happened, in ns since the epoch; read from the process's clock unless given."""
    span_id: int = FROM_AMBIENT
    """The open span around it, by its id in this process; 0 for none. A span's own events name the span itself."""
    step: int = FROM_AMBIENT
    """The training step around it; -1 for none."""

    def __attrs_post_init__(self) -> None:
        this: Any = self
        if this.at_ns is FROM_AMBIENT:
            this.at_ns = _offset_ns + _monotonic_ns()
        if this.span_id is FROM_AMBIENT:
            this.span_id, step = _surroundings()
            if this.step is FROM_AMBIENT:
                this.step = step
        elif this.step is FROM_AMBIENT:
            this.step = _surroundings()[1]


@_define
class EventOfSpan(Event):
    """
    The envelope of the events that a span publishes about itself.

    ``span_id`` is the id of the span itself, within its process and from 1; 0 unless given.
    """

    parent_span_id: int = FROM_AMBIENT
    """The span around it; the open one unless given, and 0 for none."""

    def __attrs_post_init__(self) -> None:
        this: Any = self
        if this.span_id is FROM_AMBIENT:
            this.span_id = 0
        if this.parent_span_id is FROM_AMBIENT:
            this.parent_span_id = _surroundings()[0]
        super().__attrs_post_init__()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
@suggests_settings()
def event(name: str, *, priority: Priority = ITERATION, version: int = 1, derived: bool = False) -> Callable[[C], C]:
    """
    Declare an event class under its wire name.

    Readers of an event get the values that were logged: converters and initializers change nothing a second time.
    Validators are called, and an event that they refuse is read as an `UnknownEvent`.

    Args:
        name: Dotted and lower-case, the first part naming its owner: ``"acme.batch.skipped"``.
            It identifies the type in files and on the wire and must not change.
        priority: How much it matters when there is not room for all.
        version: The version of the fields, 1 to 65,535. A field that has a new meaning needs a new version, which
            older readers keep as `UnknownEvent`. A new field with a default, or a removed field, needs none.
        derived: Whether a model computes it from other events. Models never read such an event,
            and replay computes it again.

    Raises:
        ConfigError: if the name, the version, the priority or a field's name is malformed, or the class
            is not an `Event`.
        DuplicateEventError: if another class has the name.
    """
    check_names(name, version)
    if priority not in tuple(Priority):
        raise ConfigError("event priority", priority, "give LIFECYCLE, ITERATION or PROFILE")

    def declare(cls: C) -> C:
        if not (isinstance(cls, type) and issubclass(cls, Event)):
            raise ConfigError("@event", cls, "decorate a class that derives from trackside.Event")
        declared: Any = _define(cls)
        declared.wire_name = name
        declared.version = version
        declared.priority = Priority(priority)
        declared.derived = derived
        if "__attrs_post_init__" in vars(declared):
            envelope: Any = EventOfSpan if issubclass(declared, EventOfSpan) else Event
            declared.__attrs_post_init__ = _stamping(envelope.__attrs_post_init__, declared.__attrs_post_init__)
        register(declared)
        if native is not None:
            _compile(declared)
        return declared  # type: ignore[no-any-return]

    return declare


def _compile(cls: Any) -> None:
    """Have the compiled core build the events of *cls*, if its constructor only fills slots."""
    init = vars(cls).get("__init__")
    if not getattr(init, "__code__", _set_clock.__code__).co_filename.startswith("<attrs generated"):
        return
    fields = []
    for field in fields_in(cls):
        default: Any = field.default
        is_factory = isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # a class, to attrs
        is_plain = field.init and field.alias == field.name and field.converter is None and field.validator is None
        if not is_plain or field.kw_only is (field.name in ENVELOPE) or (is_factory and default.takes_self):
            return
        kind = 2 if is_factory else 0 if default is attrs.NOTHING else 1
        fields.append((field.name, kind, default.factory if is_factory else default))
    if hasattr(cls, "__attrs_pre_init__"):
        return
    posts = (Event.__attrs_post_init__, EventOfSpan.__attrs_post_init__)
    post = cls.__attrs_post_init__
    native.compile_class(cls, tuple(fields), posts.index(post) if post in posts else len(posts))


def _stamping(fill: Callable[[Any], None], own: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a function that fills the envelope, then calls a class's *own* ``__attrs_post_init__``."""

    @functools.wraps(own)
    def fill_and_finish(self: Event) -> None:
        fill(self)
        own(self)

    return fill_and_finish

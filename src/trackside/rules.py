"""
Rules, by which a subscription or a reader decides which of its events it keeps.

A rule is a value. `start` returns a function with fresh state, so that one rule can serve any number of subscriptions.
The function is called for each event, by any thread, and never takes a lock. It returns None to keep the event, else
the reason to drop it: ``"sampled"`` if the rule would have kept another event like it, ``"filtered"`` if a predicate
returned a false value.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import attrs

from trackside.events import (
    ConfigError,
    DecodeError,
    Event,
    IterationEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    UnknownEvent,
    Value,
    span_names,
)
from trackside.events._selected import EventTypes, SelectedTypes, checked_rule, is_rule

Reason: TypeAlias = Literal["sampled", "filtered"]
Decide: TypeAlias = Callable[[Event], "Reason | None"]

SAMPLED: Final = "sampled"
FILTERED: Final = "filtered"

MAX_NAMES: Final = 1_024
_REMEMBERED_SPANS: Final = 1_024

MAX_DEPTH: Final = 8
MAX_PARTS: Final = 64
MAX_COUNT: Final = 2**53
MAX_PERIOD_S: Final = 1e9
REMEMBERED_PERIODS: Final = 64


class Rule(Protocol):
    """The type of the argument *keep* of `subscribe`."""

    @property
    def portable(self) -> bool:
        """Whether the rule can be sent to another process."""

    def start(self) -> Decide:
        """Return a function that decides about one event after another, with state of its own."""

    def to_wire(self) -> list[Any]:
        """Return the rule as plain data for `rule_from_wire`."""


@attrs.frozen(eq=False, repr=False)
class Every(Value):
    """Keep the first of every *n* events."""

    n: int
    portable: ClassVar[bool] = True

    def start(self) -> Decide:
        """Return a decision with a count of its own."""
        n = self.n
        # One call into C per event, so no two threads get the same number.
        number = itertools.count().__next__
        return lambda _event: SAMPLED if number() % n else None

    def to_wire(self) -> list[Any]:
        """Return ``["every", n]``."""
        return ["every", self.n]


@attrs.frozen(eq=False, repr=False)
class Fraction(Value):
    """Keep the events of a share *p* of all steps."""

    p: float
    portable: ClassVar[bool] = True

    def start(self) -> Decide:
        """Return a decision; it has no state."""
        limit = int(self.p * 2**64)

        def decide(event: Event) -> Reason | None:
            step = event.step
            return None if step < 0 or scattered(step) < limit else SAMPLED

        return decide

    def to_wire(self) -> list[Any]:
        """Return ``["fraction", p]``."""
        return ["fraction", self.p]


@functools.lru_cache(maxsize=256)  # the events of one step come together; a hit takes a sixth of the time
def scattered(step: int) -> int:
    """
    Return a number from 0 to 2**64 − 1 that depends on *step* alone and looks random.

    The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
    Python's own ``hash`` does not scatter steps: the hash of an int is the int itself.
    """
    z = (step + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return z ^ (z >> 31)


@attrs.frozen(eq=False, repr=False)
class AtMost(Value):
    """Keep the first *n* events of every period of *per* seconds."""

    n: int
    per: float
    portable: ClassVar[bool] = True

    def start(self) -> Decide:
        """Return a decision with counts of its own for the latest periods."""
        n = self.n
        per_ns = round(self.per * 1e9)
        periods: dict[int, Callable[[], int]] = {}

        def opened(period: int) -> Callable[[], int]:
            # If several threads open a period at once, setdefault makes all of them use the counter of one.
            number = periods.setdefault(period, itertools.count().__next__)
            if len(periods) > REMEMBERED_PERIODS:
                for old in list(periods)[:-REMEMBERED_PERIODS]:
                    periods.pop(old, None)
            return number

        def decide(event: Event) -> Reason | None:
            period = event.at_ns // per_ns
            number = periods.get(period) or opened(period)
            return None if number() < n else SAMPLED

        return decide

    def to_wire(self) -> list[Any]:
        """Return ``["at_most", n, per]``."""
        return ["at_most", self.n, self.per]


@attrs.frozen(eq=False, repr=False)
class Where(Value):
    """Keep the events for which *predicate* is true."""

    predicate: Callable[[Any], object]
    portable: ClassVar[bool] = False

    def start(self) -> Decide:
        """Return a decision; only the predicate may have state."""
        predicate = self.predicate
        return lambda event: None if predicate(event) else FILTERED

    def to_wire(self) -> list[Any]:
        """
        Refuse: code is not sent to other processes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "where(predicate)", self.predicate, "a predicate stays where it was written; send another rule"
        )


@attrs.frozen(eq=False, repr=False)
class Combination(Value):
    """A rule made of *rules*; a subclass combines their decisions in `start`."""

    rules: tuple[Rule, ...]
    name: ClassVar[str]
    """The rule's name in the wire form."""

    @property
    def portable(self) -> bool:
        """Whether all parts are portable."""
        return all(rule.portable for rule in self.rules)

    def to_wire(self) -> list[Any]:
        """Return ``[name, [part, …]]``."""
        return [self.name, [rule.to_wire() for rule in self.rules]]


@attrs.frozen(eq=False, repr=False)
class AllOf(Combination):
    """Keep the events that all of *rules* keep."""

    name: ClassVar[str] = "all_of"

    def start(self) -> Decide:
        """Return a function that calls the parts in order and stops at the first that drops."""
        decisions = tuple(rule.start() for rule in self.rules)

        def decide(event: Event) -> Reason | None:
            for ask in decisions:
                reason = ask(event)
                if reason is not None:
                    return reason
            return None

        return decide


@attrs.frozen(eq=False, repr=False)
class AnyOf(Combination):
    """Keep the events that any of *rules* keeps."""

    name: ClassVar[str] = "any_of"

    def start(self) -> Decide:
        """Return a function that calls the parts in order and stops at the first that keeps."""
        decisions = tuple(rule.start() for rule in self.rules)

        def decide(event: Event) -> Reason | None:
            verdict: Reason = FILTERED
            for ask in decisions:
                reason = ask(event)
                if reason is None:
                    return None
                if reason == SAMPLED:
                    verdict = SAMPLED  # with another draw the event would have been kept
            return verdict

        return decide


def every(n: int) -> Every:
    """
    Keep the first of every *n* events.

    Raises:
        ConfigError: unless *n* is a whole number from 1 to 2**53.
    """
    return Every(_whole("every(n)", n))


def fraction(p: float) -> Fraction:
    """
    Keep the events of a share *p* of all steps: the same steps on all ranks and in all runs.

    An event without a step is kept. A smaller share keeps a part of what a larger one keeps.

    Raises:
        ConfigError: unless *p* is from 0 to 1.
    """
    return Fraction(_real("fraction(p)", p, 0.0, 1.0))


def at_most(n: int, *, per: float) -> AtMost:
    """
    Keep the *n* events that arrive first of every period of *per* seconds.

    An event's ``at_ns`` gives its period. Periods are counted from the epoch, so all ranks have the same periods. The
    decision depends only on the events' times and order. A late event counts in its own period, if that is among the
    last 64 that were opened. Around the end of a period, twice *n* may be kept within *per* seconds.

    Raises:
        ConfigError: unless *n* is a whole number from 1 to 2**53 and *per* is from a nanosecond to 1e9 s.
    """
    return AtMost(_whole("at_most(n)", n), _real("at_most(per)", per, 1e-9, MAX_PERIOD_S))


def where(predicate: Callable[[Any], object]) -> Where:
    """
    Keep the events for which *predicate* returns a true value.

    The predicate is never sent to another process. The bus counts an exception that it raises as a failure of the
    subscription.

    Raises:
        ConfigError: if *predicate* cannot be called.
    """
    if not callable(predicate):
        raise ConfigError("where(predicate)", predicate, "give a function of one event that returns true to keep it")
    return Where(predicate)


def all_of(*rules: Rule) -> AllOf:
    """
    Keep the events that all of *rules* keep.

    The rules are called in order, up to the first that drops the event:
    ``all_of(where(is_slow), every(10))`` keeps every tenth slow event.

    Raises:
        ConfigError: if there are no rules, more than 64 or more than 8 levels, or if an argument is not a rule.
    """
    return AllOf(_parts("all_of(rules)", rules))


def any_of(*rules: Rule) -> AnyOf:
    """
    Keep the events that any of *rules* keeps.

    The rules are called in order, up to the first that keeps the event. An event that no rule keeps counts as sampled
    if any rule samples.

    Raises:
        ConfigError: if there are no rules, more than 64 or more than 8 levels, or if an argument is not a rule.
    """
    return AnyOf(_parts("any_of(rules)", rules))


def rule_from_wire(data: Any) -> Rule:
    """
    Return the rule from which `Rule.to_wire` made *data*.

    Raises:
        DecodeError: if *data* is anything else; it may come from an untrusted process.
    """
    try:
        return _read(data, MAX_DEPTH)
    except ConfigError as error:
        raise DecodeError(f"not a rule: {error.field} is {reprlib.repr(error.given)}; {error.remedy}") from None


def _read(data: Any, depth: int) -> Rule:
    if depth == 0:
        raise DecodeError(f"not a rule: nested deeper than {MAX_DEPTH}")
    match data:
        case ["every", n]:
            return every(n)
        case ["fraction", p]:
            return fraction(p)
        case ["at_most", n, per]:
            return at_most(n, per=per)
        case ["all_of" | "any_of" as name, [*parts]]:
            rules = [_read(part, depth - 1) for part in parts[: MAX_PARTS + 1]]
            return all_of(*rules) if name == "all_of" else any_of(*rules)
        case ["only_spans", [*names]]:
            return only_spans(*names[: MAX_NAMES + 1])
        case ["without_spans", [*names]]:
            return without_spans(*names[: MAX_NAMES + 1])
    raise DecodeError(f"not a rule: {reprlib.repr(data)}")


def _whole(field: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MAX_COUNT:
        raise ConfigError(field, value, "give a whole number from 1 to 2**53")
    return number


def _real(field: str, value: Any, lowest: float, highest: float) -> float:
    right = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not right or not lowest <= value <= highest:  # NaN is in no range
        raise ConfigError(field, value, f"give a number from {lowest:g} to {highest:g}")
    return float(value)


def _parts(field: str, rules: tuple[Any, ...]) -> tuple[Rule, ...]:
    if not rules:
        raise ConfigError(field, rules, "give at least one rule")
    for rule in rules:
        if not is_rule(rule):
            raise ConfigError(field, rule, "give rules such as every(10) or where(predicate)")
    if 1 + max(map(_depth, rules)) > MAX_DEPTH:
        raise ConfigError(field, rules, f"nest rules at most {MAX_DEPTH} deep")
    if 1 + sum(map(_size, rules)) > MAX_PARTS:
        raise ConfigError(field, rules, f"combine at most {MAX_PARTS} rules")
    return rules


def _depth(rule: Rule) -> int:
    return 1 + max(map(_depth, rule.rules)) if isinstance(rule, Combination) else 1


def _size(rule: Rule) -> int:
    return 1 + sum(map(_size, rule.rules)) if isinstance(rule, Combination) else 1


@attrs.frozen(eq=False, repr=False)
class SpansNamed(Value):
    """Keep or drop the spans of some *names*, with the events on them; keep everything else."""

    names: frozenset[str]
    dropped: bool
    """Whether the names are dropped, rather than the only ones kept."""
    portable: ClassVar[bool] = True

    def start(self) -> Callable[[Event], Any]:
        """
        Return a decision that remembers the spans that it has dropped, to drop the events on them too.

        This holds for spans that are published at their start; others are not known while they are open.
        """
        names, dropped = self.names, self.dropped
        silenced: dict[tuple[str, int], None] = {}

        def decide(event: Event) -> Any:
            if isinstance(event, IterationEnded):
                name = span_names.OF_ITERATION.get(event.kind, "")
            elif isinstance(event, (SpanStarted, SpanEnded)):
                name = event.name
            elif isinstance(event, SpanEventAdded):
                return FILTERED if silenced and (event.source.id, event.span_id) in silenced else None
            else:
                return None
            if (name in names) is not dropped:
                return None
            if isinstance(event, SpanStarted):
                silenced[event.source.id, event.span_id] = None
                while len(silenced) > _REMEMBERED_SPANS:
                    silenced.pop(next(iter(silenced)), None)
            elif silenced:
                silenced.pop((event.source.id, event.span_id), None)
            return FILTERED

        return decide

    def to_wire(self) -> list[Any]:
        """Return ``["only_spans", [name, …]]`` or ``["without_spans", [name, …]]``."""
        return ["without_spans" if self.dropped else "only_spans", sorted(self.names)]


def only_spans(*names: str) -> SpansNamed:
    """
    Keep only the spans of *names*, with the events on them; keep everything that is no span.

    Raises:
        ConfigError: if there are no names, or if an argument is not a name.
    """
    return SpansNamed(_checked_names("only_spans(names)", names), dropped=False)


def without_spans(*names: str) -> SpansNamed:
    """
    Drop the spans of *names*, with the events on them; keep everything else.

    Raises:
        ConfigError: if there are no names, or if an argument is not a name.
    """
    return SpansNamed(_checked_names("without_spans(names)", names), dropped=True)


def _checked_names(field: str, names: Sequence[Any]) -> frozenset[str]:
    if not names or len(names) > MAX_NAMES or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(field, names, f"give from 1 to {MAX_NAMES} names of spans")
    alias = span_names.TESTING_ITERATION_ALIAS
    return frozenset(span_names.TESTING_ITERATION if name == alias else name for name in names)


class EventSelection:
    """
    Selects numbered events by type and rule.

    A class and a name select the events of derived classes too. The rule has a state for each source, so that its
    decisions do not depend on how sources interleave.

    Args:
        to: The event types, by class, wire name or glob.
        keep: The rule that decides which of their events to keep; all unless given.

    Raises:
        ConfigError: if an argument is invalid.
    """

    def __init__(self, to: EventTypes = Event, keep: Rule | None = None) -> None:
        self._types = SelectedTypes.of(to)
        self._keep: Rule | None = checked_rule(keep)
        self._by_class: dict[type[Event], bool] = {}
        self._decisions: dict[str, Decide] = {}

    def of(self, source_id: str, events: Sequence[Event]) -> Sequence[Event]:
        """Return the selected ones of the *events* of one source."""
        if not self._types.has_all:
            events = [event for event in events if self._is_selected(event)]
        if self._keep is None:
            return events
        decide = self._decisions.get(source_id)
        if decide is None:
            decide = self._decisions[source_id] = self._keep.start()
        return [event for event in events if decide(event) is None]

    def _is_selected(self, event: Event) -> bool:
        if isinstance(event, UnknownEvent):
            return self._types.has(event)
        cls = type(event)
        known = self._by_class.get(cls)
        if known is None:
            known = self._by_class[cls] = self._types.has(cls)
        return known

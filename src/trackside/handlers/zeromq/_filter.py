"""What a viewer asks for, in a form that crosses the wire."""

from __future__ import annotations

import fnmatch
from typing import Any, Final

import attrs
import msgpack

from trackside.events import (
    ConfigError,
    DecodeError,
    Detail,
    Event,
    SourceEnded,
    SourceStarted,
    UnknownEvent,
    wire_name_of,
)
from trackside.handlers.zeromq._protocol import MAX_NAMES, MAX_TEXT

EVERYTHING: Final = "*"
ALWAYS: Final = (SourceStarted.wire_name, SourceEnded.wire_name)
"""In every stream, asked for or not: they say whose events these are, and that there will be no more."""
_MARKS: Final = frozenset(".*?[")
"""A text that has none of these is neither a wire name nor a glob."""
_MAX_RULE_BYTES: Final = 16 << 10


@attrs.frozen
class Filter:
    """Which events are wanted; equal filters are served by one stream."""

    names: tuple[str, ...] = (EVERYTHING,)
    """Wire names and globs; a name also means what is derived from it."""
    detail: int = int(Detail.PROFILE)
    """The lowest level."""
    rule_bytes: bytes = b""
    """The rule's wire form, packed so that it can be compared; empty for none."""

    @property
    def rule(self) -> list[Any] | None:
        """The rule's wire form."""
        return msgpack.unpackb(self.rule_bytes) if self.rule_bytes else None

    @property
    def level(self) -> Detail:
        """The lowest level, as such."""
        return Detail(self.detail)

    @property
    def is_open(self) -> bool:
        """Whether it lets everything through."""
        return EVERYTHING in self.names and self.detail <= int(Detail.PROFILE) and not self.rule_bytes

    @classmethod
    def from_wire(cls, names: list[str], detail: int, rule: list[Any] | None) -> Filter:
        """
        Read a filter that somebody sent.

        Raises:
            DecodeError: if it is none.
        """
        if not names or any(not name or len(name) > MAX_TEXT for name in names):
            raise DecodeError("a filter names at least one type")
        if not 0 <= detail <= max(Detail):
            raise DecodeError(f"{detail} is no level of detail")
        packed: bytes = msgpack.packb(rule) if rule is not None else b""
        if len(packed) > _MAX_RULE_BYTES:
            raise DecodeError(f"a rule of {len(packed)} bytes; at most {_MAX_RULE_BYTES}")
        return cls(tuple(sorted(set(names))), max(detail, int(Detail.PROFILE)), packed)

    @classmethod
    def of(cls, to: object, detail: Detail | None, rule: list[Any] | None) -> Filter:
        """
        Return the filter for what a user asks for.

        Args:
            to: An event class, a wire name, a glob, or a tuple of these.
            detail: The lowest level; all unless given.
            rule: A rule's wire form.

        Raises:
            ConfigError: if it is none of these.
        """
        given = to if isinstance(to, tuple) else (to,)
        names = [_name(entry) for entry in given]
        if not names or None in names or len(names) > MAX_NAMES:
            raise ConfigError("to", to, f"give an event class, a wire name, a glob, or a tuple of at most {MAX_NAMES}")
        try:
            level = Detail.PROFILE if detail is None else Detail(detail)
        except ValueError:
            raise ConfigError("detail", detail, "give LIFECYCLE, ITERATION or PROFILE") from None
        return cls.from_wire([name for name in names if name is not None], int(level), rule)

    def admits(self, event: Event) -> bool:
        """Return whether *event* was asked for, as far as its type says; the rule apart."""
        # The level of a type that is not known here is known where it came from, and was asked about there.
        if event.detail < self.detail and not isinstance(event, UnknownEvent):
            return False
        if EVERYTHING in self.names:
            return True
        known = {base.wire_name for base in type(event).__mro__ if issubclass(base, Event) and base.wire_name}
        known.add(wire_name_of(event))
        return any(fnmatch.fnmatchcase(name, glob) for name in known for glob in self.names)


def _name(entry: object) -> str | None:
    if isinstance(entry, str) and len(entry) <= MAX_TEXT and not _MARKS.isdisjoint(entry):
        return entry
    if isinstance(entry, type) and issubclass(entry, Event):
        return entry.wire_name or EVERYTHING
    return None

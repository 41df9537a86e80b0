"""What a collector gives to viewers: the frames of all its sources, whole or filtered, and its models' states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from trackside.events import ConfigError, Event, Frame, RowEncoder, Schema, clock, encode_frame
from trackside.handlers.zeromq._filter import ALWAYS, Filter
from trackside.handlers.zeromq._peer import Ready
from trackside.handlers.zeromq._ring import Lost, Ring
from trackside.handlers.zeromq._snapshot import Place, Snapshot, dump_models, encode_snapshot

Keep: TypeAlias = Callable[[Event], bool]


@attrs.define(eq=False)
class _Cut:
    """One stream: whose ring it fills, and with what."""

    wanted: Filter
    ring: Ring
    keep: Keep | None
    encoder: RowEncoder = attrs.field(factory=RowEncoder)

    def admits(self, event: Event) -> bool:
        return event.wire_name in ALWAYS or (self.wanted.admits(event) and (self.keep is None or self.keep(event)))


class Relay:
    """
    Supplies the streams of a collector; all on the thread of whoever calls.

    Args:
        models: Whose states go into snapshots.
        places: Returns every source, and how far it has come.
        status: Returns what to say in beats.
        read_rule: Makes a filter's rule from its wire form; without it viewers' rules are refused.
    """

    def __init__(
        self,
        models: Sequence[Any],
        places: Callable[[], Iterable[Place]],
        status: Callable[[], dict[str, Any]],
        read_rule: Callable[[list[Any]], Keep] | None = None,
    ) -> None:
        self.status = status
        self._models = models
        self._places = places
        self._read_rule = read_rule
        self._cuts: list[_Cut] = []

    def add(self, frame: Frame, data: bytes, events: Sequence[Event]) -> None:
        """
        Give a frame to everybody who wants it.

        Args:
            frame: The frame.
            data: The same, as it came.
            events: Those of its events that did not come before.
        """
        for cut in self._cuts:
            if cut.wanted.is_open:
                cut.ring.append(data, len(frame.events))
            else:
                kept = [event for event in events if cut.admits(event)]
                cut.ring.append(_framed(frame, kept, cut.encoder), len(kept))

    def lose(self, lost: Lost) -> None:
        """Tell everybody what is lost."""
        for cut in self._cuts:
            cut.ring.append(lost, 0)

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring*.

        Raises:
            ConfigError: if the filter has a rule that cannot be followed here.
        """
        rule = wanted.rule
        if rule is not None and self._read_rule is None:
            raise ConfigError("keep", rule, "this collector follows no rules; leave it out")
        keep = self._read_rule(rule) if rule is not None and self._read_rule is not None else None
        cut = _Cut(wanted, ring, keep)
        self._cuts.append(cut)
        return lambda: self._cuts.remove(cut)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[Ready | None], None]) -> None:
        """Take a snapshot at once."""
        snapshot = Snapshot(list(self._places()), dump_models(self._models, models), clock.now_ns())
        try:
            data = encode_snapshot(snapshot)
        except (ValueError, TypeError):
            done(None)
        else:
            done(Ready(data, ring.next_index, ring.before))


def _framed(frame: Frame, events: Sequence[Event], encoder: RowEncoder) -> bytes:
    """Return a frame that accounts for what *frame* does and holds *events* alone."""
    schemas: dict[int, Schema] = {}
    rows: list[bytes] = []
    for event in events:
        assert event.seq is not None  # the decoder numbered it
        schema, row = encoder.encode(event, event.seq - frame.first_seq)
        schemas[schema.number] = schema
        rows.append(row)
    entries = [schema.entry for schema in schemas.values()]
    return encode_frame(frame.source.id, frame.first_seq, frame.last_seq, shed=frame.shed, schemas=entries, rows=rows)

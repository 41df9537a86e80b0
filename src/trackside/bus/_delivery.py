"""The delivery of the events at the front of the queue, and who gets those of a type."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from trackside._implementation import native
from trackside.bus._admission import Admission
from trackside.bus._frames import ROW_EXTRA_BYTES, FrameBatcher
from trackside.bus._subscribers import FrameSubscriber, ModelSubscriber, QueuedSubscriber, SinkSubscriber
from trackside.events import Event, Source
from trackside.wire import Encoding, Schema


class FanOut:
    """The resolved subscribers of one event type, and how its events become rows."""

    __slots__ = (
        "admission",
        "appends",
        "batch",
        "choosing",
        "encode",
        "groups",
        "is_plain",
        "models",
        "needs_number",
        "pends",
        "ruled",
        "schema",
        "sinks",
    )

    def __init__(
        self,
        admission: Admission,
        subscribers: Sequence[QueuedSubscriber],
        schema: Schema | None,
        encode: Encoding | None,
    ) -> None:
        frames = [each for each in subscribers if isinstance(each, FrameSubscriber) and each.group is not None]
        # Subscribers with the same filter share a group, so one of each group is enough here.
        leaders = {each.filter_key: each for each in frames}
        self.admission = admission
        self.schema = schema
        self.encode = encode
        """None, as is *schema*, for a type that is not declared, or each of whose events has its own schema."""
        self.batch = -1
        """The batch of frames to which the schema was added last."""
        self.groups = tuple(each.group for each in leaders.values() if each.group is not None)
        self.appends = tuple(each.group.rows.append for each in leaders.values() if each.decide is None and each.group)
        self.ruled = tuple(each for each in leaders.values() if each.decide is not None)
        self.models = tuple(each for each in subscribers if isinstance(each, ModelSubscriber))
        self.pends = tuple(each.pending.append for each in self.models if each.decide is None)
        self.choosing = tuple(each for each in self.models if each.decide is not None)
        self.sinks = tuple(each for each in subscribers if isinstance(each, SinkSubscriber))
        self.needs_number = bool(self.models or self.sinks or self.ruled)
        """Whether a subscriber reads the event itself, and so its number."""
        self.is_plain = encode is not None and not (self.ruled or self.choosing or self.sinks)
        """Whether delivering an event calls no foreign code: the common case of frequent events."""


def deliver_plain(
    queue: deque[Any], fan_outs: Mapping[type[Event], FanOut], batcher: FrameBatcher, source: Source, most: int
) -> int:
    """
    Deliver up to *most* events from the front of *queue*, which has as many items, as `Dispatcher` delivers each.

    It stops at the first that is not plain or whose type is new in the batch, at one that cannot be encoded or has a
    number already, at any other item, and when the batch is full.

    Returns:
        The number of events that were delivered.
    """
    cls: type[Event] | None = None
    delivered = 0
    while delivered < most and batcher.room_bytes > 0:
        event = queue[0]
        if type(event) is not cls:
            cls = type(event)
            fan_out = fan_outs.get(cls)
            if fan_out is None or not fan_out.is_plain or fan_out.batch != batcher.batch:
                break
            encode, admission, appends, pends = fan_out.encode, fan_out.admission, fan_out.appends, fan_out.pends
        needs_number = fan_out.needs_number  # type: ignore[union-attr]  # it was found
        if needs_number and hasattr(event, "_seq"):
            break
        try:
            row = encode(event, batcher.offset)  # type: ignore[misc]  # plain ones have been encoded
        except Exception:  # the dispatcher comes to the same event, and counts its fault
            break
        queue.popleft()
        delivered += 1
        admission.taken += 1
        if needs_number:
            event._source = source  # noqa: SLF001  these slots are the dispatcher's
            event._seq = batcher.first_seq + batcher.offset  # noqa: SLF001
        batcher.offset += 1
        batcher.room_bytes -= len(row) + ROW_EXTRA_BYTES
        for append in appends:
            append(row)
        for pend in pends:
            pend(event)
    return delivered


if native is not None:
    deliver_plain = native.compile_delivery(deliver_plain, FanOut, FrameBatcher, Admission, Event, ROW_EXTRA_BYTES)

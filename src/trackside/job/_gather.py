"""The windows of all ranks by a collective, for those who have neither sockets nor a directory that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from trackside.events import Event, Source
from trackside.instruments.torch import RankGroup
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, pack


def gathered(group: RankGroup, source: Source, events: Sequence[Event]) -> list[Event]:
    """
    Return the events of every rank of *group*, rank by rank; a collective.

    Args:
        group: The ranks.
        source: This process, as it is to be known to the others.
        events: What it has to say.

    Raises:
        RuntimeError: if a rank does not come in time.
    """
    return [event for data in group.all_gather(packed(source, events)) for event in unpacked(data)]


def packed(source: Source, events: Sequence[Event]) -> bytes:
    """Return *events* of *source* as bytes: its identity, and a frame for each."""
    encoder = RowEncoder()
    frames = []
    for seq, event in enumerate(events):
        schema, row = encoder.encode(event, 0)
        frames.append(encode_frame(source.id, seq, seq, dropped={}, schemas=[schema.entry], rows=[row]))
    return pack([source.to_wire(), frames])


def unpacked(data: bytes) -> list[Event]:
    """Return the events in *data*, each with its source."""
    identity, frames = msgpack.unpackb(data)
    decoder = FrameDecoder()
    decoder.introduce(Source.from_wire(identity))
    return [event for frame in frames for event in decoder.decode(frame).events]

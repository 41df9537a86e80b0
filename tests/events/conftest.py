"""What the tests of events share: a frame around some events, one hand-made, and a registry that forgets."""

from __future__ import annotations

import msgpack
import pytest

from trackside.events import FrameDecoder, RowEncoder, _registry, encode_frame


@pytest.fixture
def frame_of():
    """Give a function that returns the frame of some events, numbered from *first*."""

    def build(*events, source_id="0123456789abcdef", first=0, shed=None):
        encoder = RowEncoder()
        schemas, rows = {}, []
        for offset, event in enumerate(events):
            schema, row = encoder.encode(event, offset)
            schemas[schema.number] = schema.entry
            rows.append(row)
        return encode_frame(
            source_id, first, first + len(events) - 1, shed=shed or {}, schemas=schemas.values(), rows=rows
        )

    return build


@pytest.fixture
def round_trip(frame_of):
    """Give a function that returns an event as a reader gets it."""
    return lambda event: FrameDecoder().decode(frame_of(event)).events[0]


@pytest.fixture
def forged():
    """Give a function that returns a frame as somebody else might write it: any part of it anything."""

    def build(*, version=1, source_id="s", first=0, last=0, shed=None, schemas=(), rows=()):
        shed = {} if shed is None else shed
        return msgpack.packb([version, source_id, first, last, shed, schemas, rows])

    return build


@pytest.fixture
def forgetful(monkeypatch):
    """Forget after the test which event classes it declared."""
    monkeypatch.setattr(_registry, "_classes", dict(_registry._classes))

"""Fixtures of the tests of the wire format: a frame around some events, and a hand-made one."""

from __future__ import annotations

import msgpack
import pytest

import framing
from trackside.wire import FrameDecoder


@pytest.fixture
def frame_of():
    """Give a function that returns the frame of some events, numbered from *first*."""

    def build(*events, source_id="0123456789abcdef", first=0, dropped=None):
        return framing.frame_of(source_id, events, first_seq=first, dropped=dropped)

    return build


@pytest.fixture
def round_trip(frame_of):
    """Give a function that returns an event as a reader gets it."""
    return lambda event: FrameDecoder().decode(frame_of(event)).events[0]


@pytest.fixture
def forged():
    """Give a function that returns a frame as another program might write it, with any value in any part."""

    def build(*, version=2, source_id="s", first=0, last=0, dropped=None, schemas=(), rows=()):
        dropped = {} if dropped is None else dropped
        return msgpack.packb([version, source_id, first, last, dropped, schemas, rows])

    return build

"""Fixtures of the tests of the wire format: a frame around some events, and a hand-made one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import framing
from trackside.wire import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside.events import Event


@pytest.fixture
def frame_of() -> Callable[..., bytes]:
    """Give a function that returns the frame of some events, numbered from *first*."""

    def build(
        *events: Event,
        source_id: str = "0123456789abcdef",
        first: int = 0,
        dropped: Mapping[str, int] | None = None,
    ) -> bytes:
        return framing.frame_of(source_id, events, first_seq=first, dropped=dropped)

    return build


@pytest.fixture
def round_trip(frame_of: Callable[..., bytes]) -> Callable[[Event], Event]:
    """Give a function that returns an event as a reader gets it."""
    return lambda event: FrameDecoder().decode(frame_of(event)).events[0]


@pytest.fixture
def forged() -> Callable[..., bytes]:
    """Give a function that returns a frame as another program might write it, with any value in any part."""

    def build(
        *,
        version: Any = 2,
        source_id: Any = "s",
        first: Any = 0,
        last: Any = 0,
        dropped: Any = None,
        schemas: Any = (),
        rows: Any = (),
    ) -> bytes:
        dropped = {} if dropped is None else dropped
        packed: bytes = msgpack.packb([version, source_id, first, last, dropped, schemas, rows])
        return packed

    return build

"""
Frames: self-describing batches of one source's events.

``[version, source_id, first_seq, last_seq, dropped, schemas, rows]``. ``first_seq … last_seq`` is what the frame
accounts for, rows that a filter left out included, so the next frame of any stream starts at last + 1 and only a
real loss is a gap. ``dropped`` counts, since the source started and by wire name, events that never got a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgpack

from trackside.events._fields import MAX_MAP_LENGTH
from trackside.wire._values import MAX_FRAME_BYTES, MAX_FRAME_ROWS

FRAME_VERSION: Final = 2
WIDTH: Final = 7
"""The parts of a frame."""


def encode_frame(
    source_id: str,
    first_seq: int,
    last_seq: int,
    *,
    dropped: Mapping[str, int],
    schemas: Iterable[bytes],
    rows: Sequence[bytes],
) -> bytes:
    """
    Join *rows* that are already encoded, and the *schemas* they use, to a frame.

    Raises:
        ValueError: if it would be larger than any reader accepts.
    """
    packer = msgpack.Packer()
    entries = list(schemas)
    frame = b"".join(
        (
            packer.pack_array_header(WIDTH),
            packer.pack(FRAME_VERSION),
            packer.pack(source_id),
            packer.pack(first_seq),
            packer.pack(last_seq),
            packer.pack(dict(dropped)),
            packer.pack_array_header(len(entries)),
            *entries,
            packer.pack_array_header(len(rows)),
            *rows,
        )
    )
    if len(frame) > MAX_FRAME_BYTES or len(rows) > MAX_FRAME_ROWS or max(len(entries), len(dropped)) > MAX_MAP_LENGTH:
        raise ValueError(
            f"a frame of {len(frame)} bytes, {len(rows)} rows, {len(entries)} types and "
            f"{len(dropped)} counts of dropped events is too large"
        )
    return frame

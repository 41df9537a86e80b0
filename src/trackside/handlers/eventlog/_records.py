"""
The record: what an event log is made of, byte for byte.

Every record is a header of 24 bytes and a payload, little-endian::

    magic      4 bytes   C1 54 53 4C
    version    u8        1
    kind       u8        what the payload is, see `Kind`
    stream     u16       a random mark of the writer
    length     u32       bytes of the stored payload
    sequence   u64       counts the records of one writer, without holes
    crc        u32       CRC-32 of the 20 bytes above and the stored payload

The mark tells the records of two writers apart when somebody concatenates their files: each counts
from nought. Every later version keeps this header, so that a reader can step over what it does not
understand and say how much it was.

A payload is stored with its marks stuffed (`stuff`), so the magic begins a record and is never part
of one. Without that, a log whose payload holds a piece of another log would, once its own header is
damaged, give away records that nobody wrote to it.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

SUFFIX = ".tslog"
MAGIC = b"\xc1TSL"  # C1 is the one byte that msgpack never uses as a type
VERSION = 1
HEADER = Struct("<4sBBHIQI")
HEADER_BYTES = HEADER.size
SUMMED_HEADER = Struct("<4sBBHIQ")
SUMMED_BYTES = SUMMED_HEADER.size
MAX_PAYLOAD_BYTES = 1 << 20

_MARK = MAGIC[:3]
_STUFFED = _MARK + b"\0"
MAX_STORED_BYTES = MAX_PAYLOAD_BYTES + MAX_PAYLOAD_BYTES // len(_MARK)
MAX_RECORD_BYTES = HEADER_BYTES + MAX_STORED_BYTES


class Kind(enum.IntEnum):
    """What a record's payload is."""

    HEADER = 1
    """Who writes this file: the first record of each, repeated every 8 MiB."""
    FRAME = 2
    """A frame of events, as `trackside.events` made it."""
    GAP = 3
    """What was lost before this place, and why."""
    END = 4
    """The writer finished this file; nothing follows."""


class Record(NamedTuple):
    """A record as it was read; its checksum was right."""

    kind: int
    sequence: int
    payload: bytes
    offset: int
    end: int
    stream: int


def stuff(payload: bytes) -> bytes:
    """Return *payload* in a form in which the magic does not occur."""
    return payload.replace(_MARK, _STUFFED)


def unstuff(stored: bytes) -> bytes:
    """Return the payload that `stuff` was given."""
    return stored.replace(_STUFFED, _MARK)


def encode_record(kind: int, payload: bytes, *, sequence: int, stream: int = 0, version: int = VERSION) -> bytes:
    """
    Return *payload* as one record.

    Args:
        kind: One of `Kind`; a reader passes on what it does not know.
        payload: At most 1 MiB.
        sequence: The number of this record among its writer's, from 0.
        stream: The writer's mark, 0 to 65,535.
        version: Of the format; another one is for tests.

    Raises:
        ValueError: *payload* is larger than 1 MiB.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload is at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    stored = stuff(payload)
    summed = SUMMED_HEADER.pack(MAGIC, version, kind, stream, len(stored), sequence)
    return b"%b%b%b" % (summed, crc32(stored, crc32(summed)).to_bytes(4, "little"), stored)

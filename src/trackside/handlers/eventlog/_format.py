"""
The format of the records of an event log, and of the payloads of all records but frames.

Every record is a header of 24 bytes and a payload, little-endian::

    magic      4 bytes   C1 54 53 4C
    version    u8        2
    kind       u8        what the payload is, see `Kind`
    stream     u16       a random mark of the writer
    length     u32       bytes of the stored payload
    sequence   u64       counts the records of one writer, without holes
    crc        u32       CRC-32 of the 20 bytes above and the stored payload

The stream distinguishes the records of two writers when their files are concatenated: each writer counts from 0. Every
later version keeps this header, so that a reader can step over a record that it does not understand and report how
large it was.

A payload is stored in a form without the magic (`stuff`), so the magic is only at the beginning of a record. Otherwise
a payload that holds a piece of another log would be read as records that were never written to this log, if the header
before it were damaged.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import attrs
import msgpack

from trackside.events import ConfigError, DecodeError, Source, clock
from trackside.wire import pack

SUFFIX = ".tslog"
MAGIC = b"\xc1TSL"  # C1 is the one byte that msgpack never uses as a type
VERSION = 2
HEADER = Struct("<4sBBHIQI")
HEADER_BYTES = HEADER.size
SUMMED_HEADER = Struct("<4sBBHIQ")
SUMMED_BYTES = SUMMED_HEADER.size
MAX_PAYLOAD_BYTES = 1 << 20

_MARK = MAGIC[:3]
_STUFFED = _MARK + b"\0"
MAX_STORED_BYTES = MAX_PAYLOAD_BYTES + MAX_PAYLOAD_BYTES // len(_MARK)


class Kind(enum.IntEnum):
    """The kind of a record's payload."""

    HEADER = 1
    """The source that writes this file: the first record of each file, repeated every 8 MiB."""
    FRAME = 2
    """A frame of events, as `trackside.events` made it."""
    GAP = 3
    """The amount that was lost before this record, and the reason."""
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
    return payload.replace(_MARK, _STUFFED) if _may_have_mark(payload) else payload


def unstuff(stored: bytes) -> bytes:
    """Return the payload from which `stuff` made *stored*."""
    return stored.replace(_STUFFED, _MARK) if _may_have_mark(stored) else stored


def _may_have_mark(data: bytes) -> bool:
    """Return whether the magic's beginning may occur in *data*; it is looked for in the first hundred likely places."""
    place = -1
    for _ in range(100):
        place = data.find(_MARK[:1], place + 1)  # one byte is found in a hundredth of the time that three take
        if place < 0 or data.startswith(_MARK, place):
            return place >= 0
    return True


def encode_record(kind: int, payload: bytes, *, sequence: int, stream: int = 0, version: int = VERSION) -> bytes:
    """
    Return *payload* as one record.

    Args:
        kind: One of `Kind`; a scanner also yields records of other kinds.
        payload: At most 1 MiB.
        sequence: The number of this record among its writer's, from 0.
        stream: The writer's mark, 0 to 65,535.
        version: The version of the format; others are for tests.

    Raises:
        ValueError: *payload* is larger than 1 MiB.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload is at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    stored = stuff(payload)
    summed = SUMMED_HEADER.pack(MAGIC, version, kind, stream, len(stored), sequence)
    return b"%b%b%b" % (summed, crc32(stored, crc32(summed)).to_bytes(4, "little"), stored)


if TYPE_CHECKING:
    from typing import TypeGuard

FORMAT = "trackside event log"
_MAX_ENTRY_BYTES = 1 << 16
_MAX_COUNT = 1 << 62
"""The highest count of events or bytes that is accepted, as in frames."""
_MAX_NS = 1 << 63


@attrs.define
class Loss:
    """Events that were lost, and the reason."""

    events: int
    size_bytes: int
    reason: str
    since_ns: int
    """The time when the first of them was lost, in ns since the epoch."""


@attrs.frozen
class Header:
    """The source that wrote a file, and the readings of its clocks when this was written."""

    source: Source
    part: int
    anchor: clock.Anchor


@attrs.frozen
class Ending:
    """The mark that a file was finished."""

    is_continued: bool
    """Whether another part follows."""


def encode_header(source: Source, part: int) -> bytes:
    """
    Return the payload of a HEADER record.

    Raises:
        ConfigError: The source is not plain data, or is larger than 64 KiB.
    """
    entry = {
        "format": FORMAT,
        "source": source.to_wire(),
        "part": part,
        "anchor": attrs.asdict(clock.read_anchor(clock.monotonic_ns)),
    }
    try:
        payload = pack(entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError("source", source, f"give it texts and numbers only ({error})") from error
    if len(payload) > _MAX_ENTRY_BYTES:
        raise ConfigError("source", f"{len(payload)} bytes", f"keep its metadata below {_MAX_ENTRY_BYTES} bytes")
    return payload


def decode_header(payload: bytes) -> Header:
    """
    Read the payload of a HEADER record.

    Raises:
        DecodeError: *payload* is not one.
    """
    entry = _entry(payload)
    part, source = entry.get("part"), entry.get("source")
    if entry.get("format") != FORMAT or not _is_below(part, _MAX_COUNT) or type(source) is not dict:
        raise DecodeError("the header record is not one of an event log")
    return Header(Source.from_wire(source), part, _anchor(entry.get("anchor")))


def encode_loss(loss: Loss) -> bytes:
    """Return the payload of a GAP record."""
    return pack(
        {"events": loss.events, "bytes": loss.size_bytes, "reason": loss.reason[:1024], "since_ns": loss.since_ns}
    )


def decode_loss(payload: bytes) -> Loss:
    """
    Read the payload of a GAP record.

    Raises:
        DecodeError: *payload* is not one.
    """
    entry = _entry(payload)
    events, size_bytes, since_ns = entry.get("events"), entry.get("bytes"), entry.get("since_ns")
    if not (_is_below(events, _MAX_COUNT) and _is_below(size_bytes, _MAX_COUNT) and _is_below(since_ns, _MAX_NS)):
        raise DecodeError("the gap record does not say what was lost")
    return Loss(events, size_bytes, str(entry.get("reason", "")), since_ns)


def encode_ending(ending: Ending) -> bytes:
    """Return the payload of an END record."""
    return pack({"continued": ending.is_continued})


def decode_ending(payload: bytes) -> Ending:
    """
    Read the payload of an END record.

    Raises:
        DecodeError: *payload* is not one.
    """
    return Ending(is_continued=_entry(payload).get("continued") is True)


def _entry(payload: bytes) -> dict[str, Any]:
    if len(payload) > _MAX_ENTRY_BYTES:
        raise DecodeError(f"an entry of {len(payload)} bytes; at most {_MAX_ENTRY_BYTES}")
    try:
        entry = msgpack.unpackb(payload, ext_hook=_refuse_extension)
    except Exception as error:  # msgpack raises ValueError, its own kinds and, for text, UnicodeDecodeError
        raise DecodeError(f"an entry that is not msgpack ({error})") from error
    if type(entry) is not dict:
        raise DecodeError("an entry is a table")
    return entry


def _is_below(value: object, bound: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < bound


def _anchor(data: object) -> clock.Anchor:
    if isinstance(data, dict):
        readings = [data.get(field.name) for field in attrs.fields(clock.Anchor)]
        whole = [reading for reading in readings if _is_below(reading, _MAX_NS)]
        if len(whole) == len(readings):
            return clock.Anchor(*whole)
    return clock.Anchor(0, 0, 0)


def _refuse_extension(code: int, _: bytes) -> object:
    raise ValueError(f"extension type {code}")

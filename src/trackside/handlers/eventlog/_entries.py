"""What records hold besides frames: who writes, what was lost, and the end."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack

from trackside.events import ConfigError, DecodeError, Source, clock

FORMAT = "trackside event log"
_MAX_ENTRY_BYTES = 1 << 16


@attrs.define
class Loss:
    """Events that were given up, and why."""

    events: int
    size_bytes: int
    reason: str
    since_ns: int
    """When the first of them was given up, in ns since the epoch."""


@attrs.frozen
class Header:
    """Who wrote a file, and how its clocks stood when this was written."""

    source: Source
    part: int
    anchor: clock.Anchor


@attrs.frozen
class Ending:
    """That a file was finished."""

    is_continued: bool
    """Whether another part follows."""


def encode_header(source: Source, part: int) -> bytes:
    """
    Return the payload of a HEADER record.

    Raises:
        ConfigError: The source's identity is no plain data, or larger than 64 KiB.
    """
    entry = {
        "format": FORMAT,
        "source": source.to_wire(),
        "part": part,
        "anchor": attrs.asdict(clock.read_anchor(clock.monotonic_ns)),
    }
    try:
        payload: bytes = msgpack.packb(entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError("source", source, f"give it texts and numbers only ({error})") from error
    if len(payload) > _MAX_ENTRY_BYTES:
        raise ConfigError("source", f"{len(payload)} bytes", f"keep its metadata below {_MAX_ENTRY_BYTES} bytes")
    return payload


def decode_header(payload: bytes) -> Header:
    """
    Read the payload of a HEADER record.

    Raises:
        DecodeError: It is none.
    """
    entry = _entry(payload)
    part, source = entry.get("part"), entry.get("source")
    if entry.get("format") != FORMAT or type(part) is not int or type(source) is not dict:
        raise DecodeError("the header record is not one of an event log")
    return Header(Source.from_wire(source), part, _anchor(entry.get("anchor")))


def encode_loss(loss: Loss) -> bytes:
    """Return the payload of a GAP record."""
    payload: bytes = msgpack.packb(
        {"events": loss.events, "bytes": loss.size_bytes, "reason": loss.reason[:1024], "since_ns": loss.since_ns}
    )
    return payload


def decode_loss(payload: bytes) -> Loss:
    """
    Read the payload of a GAP record.

    Raises:
        DecodeError: It is none.
    """
    entry = _entry(payload)
    events, size_bytes, since_ns = entry.get("events"), entry.get("bytes"), entry.get("since_ns")
    if not (type(events) is int and type(size_bytes) is int and type(since_ns) is int):
        raise DecodeError("the gap record does not say what was lost")
    return Loss(events, size_bytes, str(entry.get("reason", "")), since_ns)


def encode_ending(ending: Ending) -> bytes:
    """Return the payload of an END record."""
    payload: bytes = msgpack.packb({"continued": ending.is_continued})
    return payload


def decode_ending(payload: bytes) -> Ending:
    """
    Read the payload of an END record.

    Raises:
        DecodeError: It is none.
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


def _anchor(data: object) -> clock.Anchor:
    if isinstance(data, dict):
        readings = [data.get(field.name) for field in attrs.fields(clock.Anchor)]
        whole = [reading for reading in readings if type(reading) is int]
        if len(whole) == len(readings):
            return clock.Anchor(*whole)
    return clock.Anchor(0, 0, 0)


def _refuse_extension(code: int, _: bytes) -> object:
    raise ValueError(f"extension type {code}")

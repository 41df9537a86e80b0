"""
Read an event log without trackside: ``python examples/read_log.py LOG… > events.jsonl``.

Written from docs/wire-format.md alone, as a reader in another language would be; all it needs is msgpack. Prints the
events of each file as ``trackside export --jsonl`` does, and on stderr the damage and the losses.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

MAGIC, HEADER = b"\xc1TSL", struct.Struct("<4sBBHIQI")
VERSION, MAX_PAYLOAD_BYTES = 2, 1 << 20
KIND_HEADER, KIND_FRAME, KIND_GAP = 1, 2, 3
Record = tuple[int, int, int, bytes]


def read_records(data: bytes) -> Iterator[Record]:
    """Yield the kind, stream, sequence and payload of each sound record in *data*."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0 and at + HEADER.size <= len(data):
        _, version, kind, stream, length, sequence, crc = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        stored = data[start : start + length]
        is_whole = len(stored) == length and MAGIC not in stored
        if is_whole and zlib.crc32(stored, zlib.crc32(data[at : at + 20])) == crc:
            payload = stored.replace(MAGIC[:3] + b"\0", MAGIC[:3])
            if version == VERSION and len(payload) <= MAX_PAYLOAD_BYTES:
                yield kind, stream, sequence, payload
            else:
                print(f"a record of version {version} at {at} is passed over", file=sys.stderr)
            at = start + length
        else:
            print(f"no sound record at {at}", file=sys.stderr)
            at += len(MAGIC)


def read_frame(payload: bytes) -> tuple[str, int, int, list[dict[str, Any]]]:
    """Return the id of a frame's source, the first and last number it accounts for, and its events."""
    version, source, first, last, _, schemas, rows = msgpack.unpackb(payload, strict_map_key=False)
    if version != VERSION:
        raise ValueError(f"a frame of version {version}")
    types = {number: (name, fields) for number, name, _, fields in schemas}
    events = []
    for number, offset, at_ns, span_id, step, *values in rows:
        name, fields = types[number]
        event = {"source": source, "seq": first + offset, "time_ns": at_ns, "span_id": span_id, "step": step}
        events.append({**event, "type": name, "fields": dict(zip(fields, values, strict=True))})
    return source, first, last, events


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of one file, in order and each once, with the rank of their source."""
    seen: set[tuple[int, int]] = set()
    due: dict[str, int] = {}
    rank = 0
    for kind, stream, sequence, payload in read_records(path.read_bytes()):
        if (stream, sequence) in seen:
            continue
        seen.add((stream, sequence))
        if kind == KIND_HEADER:
            rank = msgpack.unpackb(payload)["source"].get("rank", 0)
        elif kind == KIND_GAP:
            gap = msgpack.unpackb(payload)
            print(f"{path}: {gap['events']} events are missing: {gap['reason']}", file=sys.stderr)
        elif kind == KIND_FRAME:
            source, first, last, events = read_frame(payload)
            if first > due.get(source, first):
                print(f"{path}: numbers {due[source]} to {first - 1} are missing", file=sys.stderr)
            yield from ({**event, "rank": rank} for event in events if event["seq"] >= due.get(source, 0))
            due[source] = max(last + 1, due.get(source, 0))


def plain(value: Any) -> Any:
    """Return *value* as JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return {key: plain(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def main(paths: list[str]) -> None:
    """Print the events of the files, and of all files below the directories, that *paths* name."""
    for path in map(Path, paths):
        for file in sorted(path.rglob("*.tslog")) if path.is_dir() else [path]:
            for event in read_log(file):
                print(json.dumps(plain(event)))


if __name__ == "__main__":
    main(sys.argv[1:])

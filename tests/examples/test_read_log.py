"""The example that reads event logs without trackside agrees with trackside, and with the page on the format."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import trackside
from scripts import load
from trackside.events import Source, UnknownEvent
from trackside.handlers import replay
from trackside.handlers.eventlog import EventLog
from trackside.wire import RowEncoder, encode_frame, to_json

ROOT = Path(__file__).parents[2]
VALUES = [
    b"\xc1TS",
    b"\xc1TSL\0\xff",
    math.inf,
    -math.inf,
    math.nan,
    -0.0,
    5e-324,
    2**64 - 1,
    -(2**63),
    None,
    True,
    "\N{SNOWMAN}\N{GRINNING FACE}",
    [1, [2.5, None]],
    {"a": {"b": b"x"}},
]
*_, FRAME, RECORD = (
    bytes.fromhex(block)
    for block in re.findall(
        r"```text\n([0-9a-f \n]+)```", (ROOT / "docs" / "wire-format.md").read_text(encoding="utf-8")
    )
)


@trackside.event("test.readers.said")
class Said(trackside.Event):
    value: object


@pytest.fixture(scope="module")
def reader():
    """Give the example as a module."""
    return load(ROOT / "examples" / "read_log.py")


@pytest.fixture
def log(tmp_path):
    """Give the path of a log of 140 events of rank 3, in frames of one event each."""
    with trackside.Bus(source=Source.detect({}, run_id="run", rank=3)) as bus:
        written = EventLog(tmp_path / "log", fsync_s=None)
        bus.subscribe(written)
        for number in range(140):
            bus.log(Said(value=VALUES[number % len(VALUES)], step=number))
            bus.flush()
    (path,) = written.paths
    return path


def recorded(reader, path):
    """Return the events that the example reads."""
    return [json.loads(json.dumps(reader.plain(event))) for event in reader.read_log(path)]


class TestAgrees:
    def test_on_every_event(self, reader, log):
        """Each event of a log is read as trackside reads it."""
        ours = [json.loads(to_json(event)) for event in replay(log)]
        assert len(ours) == 142
        assert recorded(reader, log) == ours

    def test_on_damage(self, reader, log, rng):
        """Of a log with a changed byte, a lost one or a torn end, both read the same events."""
        whole = log.read_bytes()
        for _ in range(30):
            data, at = bytearray(whole), rng.randrange(len(whole))
            kind = rng.randrange(3)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at]
            else:
                del data[at:]
            log.write_bytes(data)
            ours = [(event.seq, type(event).wire_name) for event in replay(log)]
            assert [(event["seq"], event["type"]) for event in recorded(reader, log)] == ours


class TestVectors:
    def test_frame(self, reader):
        """The frame on the page is the event that the page describes."""
        source, first, last, (event,) = reader.read_frame(FRAME)
        assert (source, first, last) == ("0123abcd", 7, 7)
        assert event == {
            "source": "0123abcd",
            "seq": 7,
            "time_ns": 1_700_000_000_000_000_000,
            "span_id": 3,
            "step": 41,
            "type": "acme.batch.skipped",
            "fields": {"reason": "nan"},
        }

    def test_record(self, reader):
        """The record on the page is a frame of the writer and sequence that the page gives, and is not stuffed."""
        ((kind, stream, sequence, payload),) = reader.read_records(RECORD)
        assert (kind, stream, sequence) == (2, 0x1234, 1)
        assert reader.read_frame(payload)[3][0]["fields"] == {"reason": b"\xc1TS"}

    @pytest.mark.parametrize("at", [0, 4, 8, 12, 20, 24, len(RECORD) - 1])
    def test_damaged(self, reader, at):
        """The record with another byte in any of its parts is accepted by no reader of this version."""
        data = bytearray(RECORD)
        data[at] ^= 1
        assert list(reader.read_records(bytes(data))) == []

    def test_trackside_writes_it(self):
        """Trackside writes the frame on the page, byte for byte."""
        event = UnknownEvent(name="acme.batch.skipped", fields={"reason": "nan"})
        event.at_ns, event.span_id, event.step = 1_700_000_000_000_000_000, 3, 41
        schema, row = RowEncoder().encode(event, 0)
        assert encode_frame("0123abcd", 7, 7, dropped={}, schemas=[schema.entry], rows=[row]) == FRAME

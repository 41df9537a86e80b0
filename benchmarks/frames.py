"""
Events to bytes and back, without a bus or a file: beside attrs' own companion and a JSON library written in Rust.

The peers trust every value; trackside proves of each that it can be read back, and is within limits when it is.
"""

from __future__ import annotations

import attrs
import cattrs.preconf.msgpack
import orjson

from benchmarks.files import _PARTS, PhaseMeasured
from benchmarks.measure import Row, compared, interleaved
from trackside.events import Source
from trackside.wire import FrameDecoder, RowEncoder, encode_frame

_BATCH = 500


def rows() -> list[Row]:
    """Measure, and return the rows."""
    events = [
        PhaseMeasured(
            index=index,
            loss=2.5,
            phase="training",
            tokens=4096,
            seconds=0.25,
            host="node-01",
            ok=True,
            rank=7,
            model="char",
            parts=_PARTS,
        )
        for index in range(_BATCH)
    ]
    converter = cattrs.preconf.msgpack.make_converter()
    fields = [field.name for field in attrs.fields(PhaseMeasured) if not field.name.startswith("_")]
    structured = list[PhaseMeasured]
    decoder = FrameDecoder()
    decoder.introduce(Source(id="bench"))
    frame = _frame(events)
    packed = converter.dumps(events, unstructure_as=structured)
    text = orjson.dumps([{name: getattr(event, name) for name in fields} for event in events])
    runs = {
        "encode": lambda loops: [_frame(events) for _ in range(loops // _BATCH)],
        "cattrs": lambda loops: [converter.dumps(events, unstructure_as=structured) for _ in range(loops // _BATCH)],
        "orjson": lambda loops: [
            orjson.dumps([{name: getattr(event, name) for name in fields} for event in events])
            for _ in range(loops // _BATCH)
        ],
        "decode": lambda loops: [decoder.decode(frame) for _ in range(loops // _BATCH)],
        "cattrs back": lambda loops: [converter.loads(packed, structured) for _ in range(loops // _BATCH)],
        "orjson back": lambda loops: [
            [PhaseMeasured(**fields) for fields in orjson.loads(text)] for _ in range(loops // _BATCH)
        ],
    }
    times = interleaved(runs, loops=10 * _BATCH)
    return [
        compared("a ten-field event to bytes", times, "encode", "cattrs", 1.50),
        compared("a ten-field event to bytes", times, "encode", "orjson", 2.00),
        compared("a ten-field event from bytes", times, "decode", "cattrs back", 1.00),
        compared("a ten-field event from bytes", times, "decode", "orjson back", 1.50),
    ]


def _frame(events: list[PhaseMeasured]) -> bytes:
    encoder = RowEncoder()
    encoded = [encoder.encode(event, offset) for offset, event in enumerate(events)]
    schema = encoded[0][0]
    return encode_frame("bench", 1, len(events), dropped={}, schemas=[schema.entry], rows=[row for _, row in encoded])

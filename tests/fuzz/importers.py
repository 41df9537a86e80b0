"""Fuzz targets for the readers of other tools' files: ml-goodput-measurement, torchtitan, torch.profiler."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzzing as frames
import msgpack

from trackside.events import Event, UnreadableError
from trackside.handlers.ml_goodput import RecordFiles
from trackside.handlers.models import GoodputAccumulator
from trackside.handlers.torchtitan import TitanFiles
from trackside.report import _trace as traces
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, pack, to_json, views

START_S = 1_700_000_000.0
NUMBERS = (0, 1, -1, 0.5, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan, 2**31, 2**63, -(2**64), 10**400, True)
"""Values that JSON can hold in the place of a number; Python reads ``NaN``, ``Infinity`` and integers of any length."""
ODD = (None, "", "x", "\ud800", [], {}, [1, [2]], {"a": {"b": None}}, "1700000000.5", *NUMBERS)


def mostly(rng: random.Random, value: Any) -> Any:
    """Return *value*, or now and then another value."""
    return value if rng.random() < 0.95 else rng.choice(ODD)


def damaged(rng: random.Random, text: bytes) -> bytes:
    """Return *text*, mostly as it is."""
    return text if rng.random() < 0.7 or not text else frames.mutated(rng, [text])


class _Files:
    """One file in memory-backed storage, written anew for each input."""

    suffix = ".jsonl"

    def __init__(self) -> None:
        above = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._directory = tempfile.TemporaryDirectory(dir=above)
        self.path = Path(self._directory.name) / "structured_logs" / f"input{self.suffix}"
        self.path.parent.mkdir()

    def write(self, data: bytes) -> Path:
        self.path.write_bytes(data)
        return self.path


def written_and_read(events: list[Event]) -> None:
    """Write *events* as the event log does, and read them again: none may be refused, or come back as another."""
    encoder = RowEncoder()
    schemas, rows = {}, []
    for offset, event in enumerate(events):
        to_json(event)
        schema, row = encoder.encode(event, offset)
        schemas[schema.number] = schema.entry
        rows.append(row)
    if rows:
        frame = encode_frame("s", 0, len(rows) - 1, dropped={}, schemas=schemas.values(), rows=rows)
        assert len(FrameDecoder().decode(frame).events) == len(events)


class MlGoodput(_Files):
    """Any bytes are records, faults and problems; their goodput is a fraction, and its buckets add up."""

    points = (
        "job_start job_end tpu_init_start tpu_init_end training_prep_start training_prep_end data_loading_start "
        "data_loading_end custom_badput_event_start custom_badput_event_end elastic_wait_start elastic_wait_end "
        "elastic_reinit_start elastic_reinit_end"
    ).split()

    def make(self, rng: random.Random) -> bytes:
        """Return lines of records, of several jobs and attempts, some of them damaged."""
        return damaged(rng, b"".join(self._lines(rng)))

    def _lines(self, rng: random.Random) -> Iterator[bytes]:
        at_s, step = START_S, 0
        for number in range(rng.randrange(1, 30)):
            at_s += rng.choice((0.0, 0.25, 1.0, 30.0, -5.0, 1e4))
            record: dict[str, Any] = {"job_name": mostly(rng, rng.choice("aab"))}
            kind = rng.randrange(10)
            if number == 0:
                record["job_start_time"] = at_s
            elif kind < 4:
                step += rng.choice((1, 1, 1, 2, -3))
                record |= {"step_count": mostly(rng, step), "step_start_time": mostly(rng, at_s)}
            elif kind < 8:
                for point in rng.sample(self.points, rng.choice((1, 1, 2))):
                    record[f"{point}_time"] = mostly(rng, at_s)
                record["custom_badput_event_type"] = mostly(rng, "EVAL_STEP")
            elif kind == 8:
                record |= {"event_type": rng.choice(("save", "restore", "emergency_restore", "x")), "step": step}
                record["checkpointer_blocking_start_time"] = mostly(rng, at_s)
                record["checkpointer_blocking_duration_secs"] = mostly(rng, 0.5)
                record["checkpointer_start_time"] = mostly(rng, at_s)
                record["checkpointer_duration_secs"] = mostly(rng, 0.5)
            else:
                record["elastic_slice_counts_timestamp"] = mostly(rng, at_s)
                record |= {f"{which}_slices": mostly(rng, 4) for which in ("active", "total", "available")}
            if rng.random() < 0.1:
                record[rng.choice(("step_count", "extra", "job_name"))] = rng.choice(ODD)
            yield json.dumps({"jsonPayload": record} if rng.random() < 0.1 else record).encode() + b"\n"

    def check(self, data: bytes) -> bool:
        """Return whether there is a session with a goodput."""
        model = GoodputAccumulator()
        events = list(RecordFiles([self.write(data)]))
        written_and_read(events)
        for view in views(events):
            model.consume(view)
        for session in model.sessions():
            result = model.result(session=session)
            json.dumps(result.to_json(), allow_nan=False)
            assert result.goodput is None or 0 <= result.goodput <= 1, result
        other = GoodputAccumulator()
        other.load(msgpack.unpackb(pack(model.dump()), strict_map_key=False))
        for name in model.sessions():
            assert other.result(session=name) == model.result(session=name), name
        return bool(model.sessions())


class Torchtitan(_Files):
    """Any bytes are events that an event log accepts, or lines that are counted as no record."""

    names = "step_start step_end fwd_bwd_start fwd_bwd_end fwd_bwd_error metric_value begun_start _start _end".split()

    def make(self, rng: random.Random) -> bytes:
        """Return lines of torchtitan's structured log, some of them damaged."""
        at_us, lines = int(START_S * 1e6), []
        for _ in range(rng.randrange(1, 30)):
            at_us += rng.choice((0, 1, 1_000, -50, 10**9))
            line = {
                "log_type": mostly(rng, rng.choice(("event", "event", "scalar"))),
                "log_type_name": mostly(rng, rng.choice(self.names)),
                "time_us": mostly(rng, at_us),
                "step": mostly(rng, rng.choice((-1, 0, 1, 2))),
                "value": mostly(rng, rng.random()),
                "event_name": mostly(rng, "loss"),
                "task_name": mostly(rng, "trainer"),
                "tid": mostly(rng, rng.choice((1, 2))),
                "global_rank": mostly(rng, 0),
                "local_rank": mostly(rng, 0),
                "pid": mostly(rng, 7),
                "host_name": mostly(rng, "node"),
                "source": mostly(rng, "trainer"),
                "message": mostly(rng, "m"),
            }
            lines.append(json.dumps(line).encode() + b"\n")
        return damaged(rng, b"".join(lines))

    def check(self, data: bytes) -> bool:
        """Return whether there was a record."""
        files = TitanFiles([self.write(data)])
        written_and_read(list(files))
        return files.records > 0


class Kineto(_Files):
    """Any bytes are a profile whose events become a trace that is JSON, or are refused in one line."""

    suffix = ".json"

    def make(self, rng: random.Random) -> bytes:
        """Return a trace of torch.profiler, damaged."""
        events = []
        for _ in range(rng.randrange(12)):
            event = {
                "ph": mostly(rng, rng.choice("XXMstf")),
                "name": mostly(rng, rng.choice(("aten::mm", "process_name"))),
                "pid": mostly(rng, rng.choice((1, "Spans"))),
                "tid": mostly(rng, 1),
                "ts": mostly(rng, START_S * 1e6 + rng.random()),
                "dur": mostly(rng, 5.0),
                "id": mostly(rng, 3),
                "args": mostly(rng, {"External id": 1}),
            }
            events.append(mostly(rng, event))
        trace = {
            "baseTimeNanoseconds": mostly(rng, 1_700_000_000_000_000_000),
            "distributedInfo": mostly(rng, {"rank": mostly(rng, 1)}),
            "traceEvents": mostly(rng, events),
        }
        return damaged(rng, json.dumps(mostly(rng, trace)).encode())

    def check(self, data: bytes) -> bool:
        """Return whether *data* is a profile."""
        try:
            profile = traces.load_profile(self.write(data))
        except UnreadableError:
            return False
        assert isinstance(profile.first_ns, int)
        traces.merge_profile(profile, 0, None, lambda ns: ns / 1000, lambda event: json.dumps(event, allow_nan=False))
        return True

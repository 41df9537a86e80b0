"""Events of ten fields to a file: built, encoded, written."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import msgspec
import orjson
import structlog

import trackside
from benchmarks.measure import Row, budget, compared, interleaved

_LOOPS = 8_000
"""Half of what the queue holds: nothing is dropped, and every loop ends with a flush."""


@trackside.event("benchmark.phase.measured")
class PhaseMeasured(trackside.Event):
    """An event of ten fields, one of them a map of three numbers."""

    index: int
    loss: float
    phase: str
    tokens: int
    seconds: float
    host: str
    ok: bool
    rank: int
    model: str
    parts: dict[str, float]


class PhaseStruct(msgspec.Struct):
    """The same, of the peer that has only to encode it: no time, no number, no thread that writes."""

    index: int
    loss: float
    phase: str
    tokens: int
    seconds: float
    host: str
    ok: bool
    rank: int
    model: str
    parts: dict[str, float]


_PARTS = {"forward": 1.0, "backward": 2.0, "optimizer": 3.0}


def rows() -> list[Row]:
    """Measure, and return the rows."""
    with tempfile.TemporaryDirectory() as directory:
        bus = trackside.Bus()
        subscription = bus.subscribe(trackside.EventLog(pathlib.Path(directory) / "ours", fsync_s=None))
        with (
            (pathlib.Path(directory) / "theirs.jsonl").open("wb") as file,
            (pathlib.Path(directory) / "theirs.msgpack").open("wb") as packed,
        ):
            logger = structlog.wrap_logger(
                structlog.BytesLogger(file),
                processors=[
                    structlog.processors.add_log_level,
                    structlog.processors.TimeStamper(fmt=None),
                    structlog.processors.JSONRenderer(serializer=orjson.dumps),
                ],
            )
            runs = {"trackside": _ours(bus), "structlog + orjson": _theirs(logger), "msgspec": _structs(packed)}
            times = interleaved(runs, loops=_LOOPS)
        lost = subscription.stats().lost
        bus.close()
        if lost:
            raise RuntimeError(f"{lost} events were lost: the figures would compare different work")
    operation = "a ten-field event to a file: built, encoded, written"
    return [
        compared(operation, times, "trackside", "structlog + orjson", budget(compiled=0.12, pure=0.25)),
        compared(operation, times, "trackside", "msgspec", budget(compiled=1.5)),
    ]


def _ours(bus: trackside.Bus) -> Any:
    log = bus.log

    def run(loops: int) -> None:
        for index in range(loops):
            log(
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
            )
        bus.flush()

    return run


def _theirs(logger: Any) -> Any:
    def run(loops: int) -> None:
        for index in range(loops):
            logger.info(
                "phase",
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

    return run


def _structs(file: Any) -> Any:
    encode = msgspec.msgpack.Encoder().encode

    def run(loops: int) -> None:
        for index in range(loops):
            file.write(
                encode(
                    PhaseStruct(
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
                )
            )
        file.flush()

    return run

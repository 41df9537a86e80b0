"""
The slowness: from some step on one rank takes longer over its batches, as with a disk that is about to fail.

The process that is slowed down records the truth here. Telemetry does not read it, and has to find out by itself.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import attrs


@attrs.frozen
class Slowness:
    """The truth about the slow rank."""

    rank: int
    from_step: int
    """Negative for never."""
    by_s: float
    """The additional time for each batch."""

    def suffer(self, rank: int, step: int, out: Path) -> None:
        """Sleep, if *rank* is the slow one and *step* is late enough; record the first time."""
        if rank != self.rank or not 0 <= self.from_step <= step:
            return
        path = out / "slowness.json"
        if not path.exists():
            path.write_text(json.dumps(attrs.asdict(self)))
        time.sleep(self.by_s)

    @classmethod
    def load(cls, out: Path) -> Slowness | None:
        """Read the record of the slow rank; None if none was slowed."""
        path = out / "slowness.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None

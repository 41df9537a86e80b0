"""Importing the library, in a process of its own each time; what the interpreter itself takes is subtracted."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measure import Row, compared

_REPEATS = 15
_WAYS = {
    "trackside": "import trackside",
    "OpenTelemetry": "import opentelemetry.sdk.trace, opentelemetry.sdk.metrics",
    "One Logger": "import nv_one_logger.training_telemetry.api.callbacks",
    "empty": "pass",
}


def rows() -> list[Row]:
    """Measure, and return the rows."""
    times: dict[str, list[float]] = {name: [] for name in _WAYS}
    for repeat in range(_REPEATS + 1):
        for name, source in _WAYS.items():
            began_ns = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", source], check=True)  # noqa: S603  ours
            if repeat:  # the first reads the disk
                times[name].append(float(time.perf_counter_ns() - began_ns))
    return [
        compared("import trackside, in a new process", times, "trackside", "OpenTelemetry", 1.0, floor="empty"),
        compared("import trackside, in a new process", times, "trackside", "One Logger", 0.5, floor="empty"),
    ]

"""
Importing the library, in a process of its own each time; the interpreter's own time is subtracted.

Bytecode is compiled in a first run that is not timed, as it is where a package was installed, and lies in a
directory of its own, so that nobody's settings decide who has some. What counts is the CPU time of the process: the
files are in memory by then, and waiting for a busy machine is not the library's doing.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from benchmarks.measure import Row, compared

_REPEATS = 25
_IMPORTS = {
    "trackside": "import trackside",
    "OpenTelemetry": "import opentelemetry.sdk.trace, opentelemetry.sdk.metrics",
    "One Logger": "import nv_one_logger.training_telemetry.api.callbacks",
    "empty": "pass",
}


def rows() -> list[Row]:
    """Measure, and return the rows."""
    times: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    with tempfile.TemporaryDirectory() as directory:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["PYTHONPYCACHEPREFIX"] = directory
        for repeat in range(_REPEATS + 1):
            for name, source in _IMPORTS.items():
                cpu_ns = _cpu_ns(source, environ)
                if repeat:  # the first compiles, and reads the disk
                    times[name].append(cpu_ns)
    return [
        compared("import trackside, in a new process", times, "trackside", "OpenTelemetry", 0.87, floor="empty"),
        compared("import trackside, in a new process", times, "trackside", "One Logger", 0.45, floor="empty"),
    ]


def _cpu_ns(source: str, environ: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", source], check=True, env=environ)  # noqa: S603  ours
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9

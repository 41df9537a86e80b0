"""
Training on a GPU: the step's time with its parts timed on the device, by CUDA events and by CUPTI, beside NVRx.

Each way to time has a process of its own, since CUPTI stays loaded once it was; the processes alternate with one that
times nothing. A block of steps ends when the device has done them, and its time is the step's wall time.

``python -m benchmarks.gpu WAY`` is such a process; it prints nanoseconds of a step, block by block, as JSON. It needs a
CUDA device; CUPTI, a part of CUDA, for the way *kernels*; for *NVRx*, ``nvidia-resiliency-ext`` and the CUPTI of
CUDA 12.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks.measure import Row, timing
from trackside.bus import Bus
from trackside.events import KernelWindow, SectionWindow
from trackside.instruments.cupti import kernel_recorder
from trackside.instruments.section_windows import Sections

ROUNDS = 2
BLOCKS = 12
BLOCK_S = 0.25
WAYS = ("bare", "events", "kernels", "NVRx")
PARTS = ("forward", "backward", "update")

Timed = Callable[[str], AbstractContextManager[object]]
"""Times a part of the step."""


def rows() -> list[Row]:
    """Measure, and return the rows; none where there is no device."""
    if not torch.cuda.is_available():
        return []
    found: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for _ in range(ROUNDS):
        for way, times in found.items():
            for what, steps_ns in _in_a_process(way).items():
                times.setdefault(what, []).extend(steps_ns)
    return [
        _row(f"{what}; its 3 parts timed by {way}", times[what], found["bare"][what])
        for what in found["bare"]
        for way, times in found.items()
        if way != "bare" and what in times
    ]


def _in_a_process(way: str) -> dict[str, list[float]]:
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", way], capture_output=True, text=True, check=False)  # noqa: S603  ours
    if done.returncode:
        print(f"{way} cannot be measured: {(done.stderr.splitlines() or ['no word'])[-1]}", file=sys.stderr)
        return {}
    times: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


def _row(operation: str, on: list[float], off: list[float]) -> Row:
    return Row(operation, timing(on), "untimed", timing(off), 1.05, statistics.median(on) / statistics.median(off))


def _untimed(_part: str) -> AbstractContextManager[object]:
    return contextlib.nullcontext()


def _by_trackside(way: str) -> tuple[Timed, Callable[[int], object]]:
    bus = Bus()
    bus.subscribe(lambda _window: None, to=(SectionWindow, KernelWindow))
    sections = Sections(bus, find_kernels=kernel_recorder if way == "kernels" else None)
    return lambda part: sections.section(part, gpu=True), sections.step_ended


def _by_nvrx() -> tuple[Timed, Callable[[int], object]]:
    from nvidia_resiliency_ext.straggler import Detector  # noqa: PLC0415  loads another CUPTI

    Detector.initialize(gather_on_rank0=False, report_time_interval=1e9)

    def step_ended(step: int) -> None:
        if (step + 1) % 100 == 0:  # where a window of ours ends
            Detector.generate_report()

    return lambda part: Detector.detection_section(part, profile_cuda=True), step_ended


def _model(layers: int, width: int, rows_in_batch: int) -> Callable[[Timed], None]:
    torch.manual_seed(7)
    parts: list[Any] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
    model = torch.nn.Sequential(*parts).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(rows_in_batch, width, device="cuda")

    def step(timed: Timed) -> None:
        with timed("forward"):
            loss = model(batch).square().mean()
        with timed("backward"):
            loss.backward()
        with timed("update"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def _measured(way: str) -> dict[str, list[float]]:
    """Return the nanoseconds of a step, block by block, of a step bound by the host and of one bound by the device."""
    by = {"bare": lambda: (_untimed, lambda _step: None), "NVRx": _by_nvrx}
    timed, step_ended = by.get(way, lambda: _by_trackside(way))()
    found: dict[str, list[float]] = {}
    for what, shape in (("a step of small kernels", (4, 256, 64)), ("a step of large kernels", (8, 4096, 2048))):
        step = _model(*shape)
        number = 0
        for _ in range(20):
            step(timed)
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(10):
            step(timed)
        torch.cuda.synchronize()
        steps = max(5, round(BLOCK_S / (time.perf_counter() - began_s) * 10))
        found[what] = []
        for _ in range(BLOCKS):
            began_ns = time.perf_counter_ns()
            for _ in range(steps):
                step(timed)
                step_ended(number)
                number += 1
            torch.cuda.synchronize()
            found[what].append((time.perf_counter_ns() - began_ns) / steps)
    return found


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1])))

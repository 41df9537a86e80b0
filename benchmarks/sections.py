"""Sections: entered and left, timed and skipped. The peer's CUPTI is replaced by a stand-in."""

from __future__ import annotations

from nvidia_resiliency_ext.straggler import straggler

from benchmarks.measure import Row, budget, compared, interleaved
from trackside.bus import Bus
from trackside.events import SectionWindow
from trackside.instruments.section_windows import Sections


class _NoCupti:
    """The functions that the peer calls at its start, on a machine without a GPU."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def initialize(self) -> None:
        """Do nothing."""

    shutdown = start_profiling = stop_profiling = reset_results = initialize


def _nothing(_event: object) -> None:
    pass


def rows() -> list[Row]:
    """Measure, and return the rows."""
    bus = Bus()
    straggler.CuptiManager = _NoCupti
    with bus.subscribe(_nothing, to=SectionWindow):
        return [
            *_measured(bus, 1, "a section entered and left"),
            *_measured(bus, 1000, "the same, skipped by a profiling interval of 1,000"),
        ]


def _measured(bus: Bus, interval: int, operation: str) -> list[Row]:
    sections = Sections(bus)
    sections.configure(profiling_interval=interval)
    section = sections.section
    detector = straggler.Detector
    detector.initialize(profiling_interval=interval)
    detection_section = detector.detection_section

    def ours(loops: int) -> None:
        for _ in range(loops):
            with section("forward"):
                pass

    def unnamed(loops: int) -> None:
        for _ in range(loops):
            with section():
                pass

    def theirs(loops: int) -> None:
        for _ in range(loops):
            with detection_section("forward", profile_cuda=False):
                pass

    def empty(loops: int) -> None:
        for _ in range(loops):
            pass

    runs = {"trackside": ours, "unnamed": unnamed, "NVRx 0.4.1": theirs, "empty": empty}
    try:
        times = interleaved(runs, loops=20_000)
    finally:
        detector.shutdown()
        sections.close()
    return [
        compared(operation, times, "trackside", "NVRx 0.4.1", budget(compiled=0.08, pure=0.40), floor="empty"),
        compared(f"{operation}, unnamed", times, "unnamed", "NVRx 0.4.1", 0.60, floor="empty"),
    ]

"""The peer's detector: one per process, and one report at a time."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import attrs

from trackside.bus import Bus, default_bus
from trackside.compat.straggler.interval_tracker import ReportIntervalTracker
from trackside.compat.straggler.reporting import Report, ReportGenerator
from trackside.events import Event
from trackside.handlers.models.scores import KINDS
from trackside.instruments import NamedCallable, Section
from trackside.instruments._wrapping import Layers
from trackside.instruments.cupti import kernel_recorder
from trackside.instruments.section_windows import Sections
from trackside.instruments.torch import RankGroup


class _Running:
    """The state between `Detector.initialize` and `Detector.shutdown`."""

    def __init__(self, generator: ReportGenerator, *, profiling_interval: int, report_time_interval: float) -> None:
        self._generator = generator
        self._events: list[Event] = []
        self._reports = 0
        self._bus = Bus()
        self._bus.subscribe(self._events.append)
        self._sections = Sections(self._bus, find_kernels=kernel_recorder)
        self._sections.configure(window_steps=1, profiling_interval=profiling_interval)
        self.layers = Layers(self._sections.section)
        self.gpu_layers = Layers(self._gpu_section)
        self.interval = ReportIntervalTracker(
            report_time_interval, profiling_interval=profiling_interval, largest=self._largest
        )

    def section(self, name: str, *, gpu: bool) -> Section:
        return self._sections.section(name, gpu=gpu)

    def unnamed_section(self, *, gpu: bool, depth: int) -> Section:
        return self._sections.section_at(depth + 2, gpu=gpu)

    def _gpu_section(self, name: str) -> Section:
        return self._sections.section(name, gpu=True)

    def _largest(self, value: float) -> float:
        return largest_of(self._generator.joined())(value)

    def report(self) -> Report | None:
        """Close the window, exchange it with other ranks if needed, and score it."""
        self._sections.flush_gpu()
        self._sections.step_ended(self._reports)
        self._reports += 1
        mine, self._events[:] = self._events[:], []
        for event in mine:
            default_bus.log(event)
        return self._generator.report_of(mine)

    def close(self) -> None:
        self.layers.restore(everything=True)
        self.gpu_layers.restore(everything=True)
        self._sections.close()
        self._bus.close()
        self._generator.close()


class Detector:
    """
    Straggler detection under the peer's names; everything is a class method.

    If torch has a process group, a report covers all its ranks, which communicate over a separate gloo group. Sections
    are also published as `SectionWindow` events. The median of an even number of values is the mean of the two middle
    ones; the deviation is that of the population.
    """

    initialized: bool = False
    scores_to_compute: Sequence[str]
    gather_on_rank0: bool
    profiling_interval: int
    report_time_interval: float
    reporter: ReportGenerator
    report_interval_tracker: ReportIntervalTracker

    _running: _Running | None = None

    def __new__(cls) -> NoReturn:
        """Refuse: there is one detector per process."""
        raise RuntimeError(f"class {cls.__name__} should not be instantiated")

    @classmethod
    def initialize(
        cls,
        scores_to_compute: Sequence[str] | str = "all",
        gather_on_rank0: bool = True,  # noqa: FBT001, FBT002  the peer's signature
        profiling_interval: int = 1,
        report_time_interval: float = 60.0,
        node_name: str | None = None,
    ) -> None:
        """
        Start the detection.

        Args:
            scores_to_compute: ``relative_perf_scores``, ``individual_perf_scores``, both, or ``all``.
            gather_on_rank0: Whether rank 0 reports on all ranks, or each on itself.
            profiling_interval: One in so many entries of a section is timed.
            report_time_interval: Seconds between reports, for `generate_report_if_interval_elapsed`.
            node_name: The name of this node; its host name unless given.
        """
        if cls._running is not None:
            raise AssertionError("the detector is initialized already")
        is_all = scores_to_compute == "all"
        cls.scores_to_compute = [f"{kind}_perf_scores" for kind in KINDS] if is_all else scores_to_compute
        cls.gather_on_rank0, cls.profiling_interval = gather_on_rank0, profiling_interval
        cls.report_time_interval = report_time_interval
        cls.reporter = ReportGenerator(cls.scores_to_compute, gather_on_rank0, node_name=node_name)
        cls._running = _Running(
            cls.reporter, profiling_interval=profiling_interval, report_time_interval=report_time_interval
        )
        cls.report_interval_tracker = cls._running.interval
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End, and restore the wrapped functions; safe to call twice."""
        running, cls._running = cls._running, None
        cls.initialized = False
        if running is not None:
            running.close()

    @classmethod
    def _now(cls) -> _Running:
        if cls._running is None:
            raise RuntimeError("the detector is not initialized; call Detector.initialize() first")
        return cls._running

    @classmethod
    def detection_section(cls, name: str | None = None, profile_cuda: bool = True) -> Section:  # noqa: FBT001, FBT002
        """Return a section, for a ``with`` block; without a *name*, it is named after its file and line."""
        running = cls._now()
        if name is None:
            return running.unnamed_section(gpu=profile_cuda, depth=1)
        return running.section(name, gpu=profile_cuda)

    @classmethod
    def wrap_callables(cls, callable_ids: Iterable[CallableId], profile_cuda: bool = True) -> None:  # noqa: FBT001, FBT002
        """Time each call of the given functions; a later call of this method adds more functions."""
        running = cls._now()
        (running.gpu_layers if profile_cuda else running.layers).wrap(callable_ids)

    @classmethod
    def restore_original_callables(cls) -> None:
        """Undo every `wrap_callables`."""
        running = cls._now()
        running.layers.restore(everything=True)
        running.gpu_layers.restore(everything=True)

    @classmethod
    def generate_report(cls) -> Report | None:
        """Return a report on the times since the last one; every rank has to call it."""
        if cls._running is None:
            raise AssertionError("the detector is not initialized")
        return cls._running.report()

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """Count an iteration, and return a report if one is due; to be called on every rank, once per iteration."""
        if cls._running is None:
            raise AssertionError("the detector is not initialized")
        running = cls._running
        running.interval.iter_increase()
        return cls.generate_report() if running.interval.is_interval_elapsed() else None

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Return whether a report is due after the iteration that was counted last."""
        return cls._now().interval.is_interval_elapsed()


def largest_of(group: RankGroup | None) -> Callable[[float], float]:
    """Return a function that returns the largest value that any rank of *group* calls it with."""
    if group is None:
        return lambda value: value
    return lambda value: max(struct.unpack("<d", data)[0] for data in group.all_gather(struct.pack("<d", value)))


@attrs.frozen
class CallableId(NamedCallable):
    """A function of a module, a method of a class or of one object. Only the object and the name are used."""

    arg_filter_fn: Callable[..., Any] | None = None
    extra_args_fn: Callable[..., Any] | None = None
    ignored_args: Any = None

    def __str__(self) -> str:
        # Like the peer, which names a nested class by its last name alone.
        if inspect.ismodule(self.obj):
            owner = self.obj.__name__
        elif inspect.isclass(self.obj):
            owner = f"{self.obj.__module__}.{self.obj.__name__}"
        else:
            owner = type(self.obj).__name__
        return f"{owner}.{self.name}"

"""The peer's detector: one per process, and one report at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import attrs

from trackside.bus import Bus, default_bus
from trackside.compat.straggler._exchange import largest_of
from trackside.compat.straggler._interval import ReportInterval
from trackside.compat.straggler._report import Report, report_from
from trackside.events import Event, Source, process_source
from trackside.handlers.models.scores import KINDS, ScoreAggregator
from trackside.instruments import CallableId, Section
from trackside.instruments._wrapping import Layers
from trackside.instruments.cupti import kernel_recorder
from trackside.instruments.sections import Sections
from trackside.instruments.torch import RankGroup, is_distributed
from trackside.job._gather import gathered, packed, unpacked

_GATHER_TIMEOUT_S: Final = 300.0


class _Running:
    """Everything between `Detector.initialize` and `Detector.shutdown`."""

    def __init__(
        self,
        *,
        kinds: tuple[str, ...],
        gather_on_rank0: bool,
        profiling_interval: int,
        report_time_interval: float,
        node_name: str,
    ) -> None:
        self._kinds = kinds
        self._gather_on_rank0 = gather_on_rank0
        self._node_name = node_name
        self._events: list[Event] = []
        self._reports = 0
        self._seen: dict[str, None] = {}
        self._group: RankGroup | None = None
        self._aggregator: ScoreAggregator | None = None
        self._bus = Bus()
        self._bus.subscribe(self._events.append)
        self._sections = Sections(self._bus, find_kernels=kernel_recorder)
        self._sections.configure(window_steps=1, profiling_interval=profiling_interval)
        self.layers = Layers(self._sections.section)
        self.gpu_layers = Layers(self._gpu_section)
        self.interval = ReportInterval(report_time_interval, profiling_interval, self._largest)

    def section(self, name: str, *, gpu: bool) -> Section:
        return self._sections.section(name, gpu=gpu)

    def unnamed_section(self, *, gpu: bool, depth: int) -> Section:
        return self._sections.section_at(depth + 2, gpu=gpu)

    def _gpu_section(self, name: str) -> Section:
        return self._sections.section(name, gpu=True)

    def _largest(self, value: float) -> float:
        return largest_of(self._joined())(value)

    def _joined(self) -> RankGroup | None:
        """Return the group of all ranks, made when it is first needed; None where there is one process."""
        if self._group is None and is_distributed():
            self._group = RankGroup(_GATHER_TIMEOUT_S)
        return self._group

    def report(self) -> Report | None:
        """Close the window, exchange what has to be exchanged, and score it."""
        start_s = time.perf_counter()
        self._sections.flush_gpu()
        self._sections.step_ended(self._reports)
        mine, self._events[:] = self._events[:], []
        for event in mine:
            default_bus.log(event)
        self._reports += 1
        # Own scores need no other rank: then there is no communication at all.
        group = self._joined() if self._gather_on_rank0 or "relative" in self._kinds else None
        source = self._source(group)
        theirs = gathered(group, source, mine) if group is not None else unpacked(packed(source, mine))
        aggregator = self._aggregator
        if aggregator is None:
            aggregator = self._aggregator = ScoreAggregator(
                kinds=self._kinds, relax=0.0, keep=1, summaries_of=source.rank
            )
        for event in theirs:
            aggregator(event)
        if self._gather_on_rank0 and source.rank:
            return None
        ours = aggregator.result().windows[-1]
        self._seen.update(dict.fromkeys((*ours.relative.sections, *ours.individual.sections)))
        return report_from(
            ours,
            rank=source.rank,
            gather_on_rank0=self._gather_on_rank0,
            seen=list(self._seen),
            kinds=self._kinds,
            elapsed_ms=(time.perf_counter() - start_s) * 1e3,
        )

    def _source(self, group: RankGroup | None) -> Source:
        if group is not None:
            rank, size = group.rank, group.size
        else:
            rank, size = (process_source().rank if is_distributed() else 0), 1
        return attrs.evolve(process_source(), rank=rank, world_size=size, host=self._node_name, role="main")

    def close(self) -> None:
        self.layers.restore(everything=True)
        self.gpu_layers.restore(everything=True)
        self._sections.close()
        self._bus.close()
        if self._group is not None:
            self._group.close()


class Detector:
    """
    Straggler detection under the peer's names; everything is a class method.

    Reports are over this process's group of ranks where torch has one, by a gloo group of their own; sections are
    published as `SectionWindow` events too. The median of an even number of values is the mean of the two middle
    ones, the deviation is the population's.
    """

    initialized: bool = False
    scores_to_compute: Sequence[str]
    gather_on_rank0: bool
    profiling_interval: int
    report_time_interval: float

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
        Begin.

        Args:
            scores_to_compute: ``relative_perf_scores``, ``individual_perf_scores``, both, or ``all``.
            gather_on_rank0: Whether rank 0 reports on all ranks, or each on itself.
            profiling_interval: Every how many entries of a section one is timed.
            report_time_interval: Seconds between reports, for `generate_report_if_interval_elapsed`.
            node_name: What to call this node; its host name unless given.
        """
        if cls._running is not None:
            raise AssertionError("the detector is initialized already")
        is_all = scores_to_compute == "all"
        cls.scores_to_compute = [f"{kind}_perf_scores" for kind in KINDS] if is_all else scores_to_compute
        cls.gather_on_rank0, cls.profiling_interval = gather_on_rank0, profiling_interval
        cls.report_time_interval = report_time_interval
        cls._running = _Running(
            kinds=tuple(kind for kind in KINDS if is_all or f"{kind}_perf_scores" in scores_to_compute),
            gather_on_rank0=gather_on_rank0,
            profiling_interval=profiling_interval,
            report_time_interval=report_time_interval,
            node_name=node_name or socket.gethostname(),
        )
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End, and restore what was wrapped; safe to call twice."""
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
        """Return a section, for a ``with`` block; one without a name is called after its file and line."""
        running = cls._now()
        if name is None:
            return running.unnamed_section(gpu=profile_cuda, depth=1)
        return running.section(name, gpu=profile_cuda)

    @classmethod
    def wrap_callables(cls, callable_ids: Iterable[CallableId], profile_cuda: bool = True) -> None:  # noqa: FBT001, FBT002
        """Time each call of some functions; more of them can be wrapped later, and none is lost."""
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
        """Return a report on what was timed since the last one; every rank has to call it."""
        if cls._running is None:
            raise AssertionError("the detector is not initialized")
        return cls._running.report()

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """Count an iteration, and return a report if one is due; to be called on every rank, once per iteration."""
        if cls._running is None:
            raise AssertionError("the detector is not initialized")
        running = cls._running
        running.interval.iteration_ended()
        return cls.generate_report() if running.interval.is_elapsed else None

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Return whether a report was due at the last such call, also where it was another rank's."""
        return cls._now().interval.is_elapsed

"""The peer's module of reports."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.compat.straggler._report import Report, Statistic, StragglerId, Summaries, report_from
from trackside.compat.straggler.name_mapper import NameMapper
from trackside.events import ConfigError, Event, KernelWindow, SectionWindow, Source, clock, process_source
from trackside.handlers.models.scores import KINDS, ScoreAggregator, is_nccl
from trackside.instruments.torch import RankGroup, is_distributed
from trackside.job._gather import gathered, packed, unpacked

__all__ = ["Report", "ReportGenerator", "StragglerId"]

_GATHER_TIMEOUT_S: Final = 300.0
_NS_PER_MS: Final = 1e6
_NS_PER_US: Final = 1e3


class ReportGenerator:
    """
    Scores what ranks took, window by window.

    Args:
        scores_to_compute: ``relative_perf_scores``, ``individual_perf_scores``, or both.
        gather_on_rank0: Whether rank 0 reports on all ranks, or each on itself.
        pg: Only None, which is all ranks.
        node_name: What to call this node; its host name unless given.

    Raises:
        ConfigError: if a group of ranks is given.
    """

    def __init__(
        self,
        scores_to_compute: Sequence[str] | str,
        gather_on_rank0: bool = True,  # noqa: FBT001, FBT002  the peer's signature
        pg: object = None,
        node_name: str | None = None,
    ) -> None:
        if pg is not None:
            raise ConfigError("pg", pg, "leave it out: a report is on all ranks")
        self.gather_on_rank0 = gather_on_rank0
        self.name_mapper = NameMapper()
        self._kinds = tuple(kind for kind in KINDS if f"{kind}_perf_scores" in scores_to_compute)
        self._node_name = node_name or socket.gethostname()
        self._reports = 0
        self._start_ns = clock.now_ns()
        self._seen: dict[str, None] = {}
        self._group: RankGroup | None = None
        self._aggregator: ScoreAggregator | None = None

    def generate_report(self, section_summaries: Summaries, kernel_summaries: Summaries) -> Report | None:
        """
        Return a report on one window; every rank has to call it.

        Args:
            section_summaries: By name, what this rank's sections took, in milliseconds.
            kernel_summaries: By name, what its kernels took, in microseconds.
        """
        now_ns = clock.now_ns()
        common: dict[str, Any] = {
            "at_ns": now_ns,
            "step": self._reports,
            "window": self._reports,
            "first_step": self._reports,
            "last_step": self._reports,
            "start_ns": self._start_ns,
        }
        self._start_ns = now_ns
        sections = _columns(section_summaries, _NS_PER_MS)
        kernels = KernelWindow(**common, **_columns(kernel_summaries, _NS_PER_US), dropped=0)
        return self.report_of([kernels, SectionWindow(**common, **sections, entries=sections["counts"])])

    def report_of(self, mine: Sequence[Event]) -> Report | None:
        """Return a report on the windows *mine*, which are this rank's of one window; every rank has to call it."""
        start_s = time.perf_counter()
        self._reports += 1
        # Own scores need no other rank: then there is no communication at all.
        is_shared = self.gather_on_rank0 or "relative" in self._kinds
        group = self.joined() if is_shared else None
        source = self._source(group)
        theirs = gathered(group, source, mine) if group is not None else unpacked(packed(source, mine))
        aggregator = self._aggregator
        if aggregator is None:
            aggregator = self._aggregator = ScoreAggregator(
                kinds=self._kinds, relax=0.0, keep=1, summaries_of=source.rank
            )
        for event in theirs:
            aggregator(event)
            if is_shared and isinstance(event, (KernelWindow, SectionWindow)):
                self._number(event)
        if self.gather_on_rank0 and source.rank:
            return None
        ours = aggregator.result().windows[-1]
        self._seen.update(dict.fromkeys((*ours.relative.sections, *ours.individual.sections)))
        return report_from(
            ours,
            rank=source.rank,
            gather_on_rank0=self.gather_on_rank0,
            seen=list(self._seen),
            kinds=self._kinds,
            elapsed_ms=(time.perf_counter() - start_s) * 1e3,
        )

    def joined(self) -> RankGroup | None:
        """Return the group of all ranks, made when it is first needed; None where there is one process."""
        if self._group is None and is_distributed():
            self._group = RankGroup(_GATHER_TIMEOUT_S)
        return self._group

    def close(self) -> None:
        """Let the group of ranks go."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _number(self, event: KernelWindow | SectionWindow) -> None:
        if isinstance(event, KernelWindow):
            self.name_mapper.assign([name for name in event.names if not is_nccl(name)], [])
        else:
            self.name_mapper.assign([], event.names)

    def _source(self, group: RankGroup | None) -> Source:
        if group is not None:
            rank, size = group.rank, group.size
        else:
            rank, size = (process_source().rank if is_distributed() else 0), 1
        return attrs.evolve(process_source(), rank=rank, world_size=size, host=self._node_name, role="main")


def _columns(summaries: Mapping[str, Mapping[Statistic, float]], unit_ns: float) -> dict[str, Any]:
    """Return *summaries* as the columns of a window; a deviation that is not known is 0."""
    rows = list(summaries.values())

    def column(statistic: Statistic) -> list[float]:
        values = [float(row[statistic]) * unit_ns for row in rows]
        return [0.0 if math.isnan(value) else value for value in values]

    return {
        "names": list(summaries),
        "counts": [int(row[Statistic.NUM]) for row in rows],
        "min_ns": column(Statistic.MIN),
        "max_ns": column(Statistic.MAX),
        "median_ns": column(Statistic.MED),
        "mean_ns": column(Statistic.AVG),
        "std_ns": column(Statistic.STD),
    }

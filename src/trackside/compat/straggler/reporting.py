"""The peer's module of reports."""

from __future__ import annotations

import enum
import math
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.compat.straggler.name_mapper import NameMapper
from trackside.events import ConfigError, Event, KernelWindow, SectionWindow, Source, clock, process_source
from trackside.handlers.models.scores import KINDS, KindScores, ScoreAggregator, ScoreReport, StragglerId, is_nccl
from trackside.instruments.torch import RankGroup, is_distributed
from trackside.job._stragglers import gathered, packed, unpacked

__all__ = ["Report", "ReportGenerator", "Statistic", "StragglerId"]

_NAN: Final = float("nan")
_NS_PER_MS: Final = 1e6
_NS_PER_US: Final = 1e3


class Statistic(enum.Enum):
    """A statistic of a section's or kernel's durations."""

    MIN = "min"
    MAX = "max"
    MED = "median"
    AVG = "mean"
    STD = "std"
    NUM = "count"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Statistic.{self.name}"


Summaries = Mapping[str, Mapping[Statistic, float]]


@attrs.frozen
class Report:
    """The scores of all ranks, or of this one. A missing score is NaN, and `missing` has the reason."""

    gpu_relative_perf_scores: Mapping[int, float]
    section_relative_perf_scores: Mapping[str, Mapping[int, float]]
    gpu_individual_perf_scores: Mapping[int, float]
    section_individual_perf_scores: Mapping[str, Mapping[int, float]]
    rank_to_node: Mapping[int, str]
    local_section_summaries: Summaries
    """The durations of this rank's sections, in milliseconds."""
    local_kernel_summaries: Summaries
    """The durations of this rank's kernels, in microseconds."""
    generate_report_elapsed_time: float
    """In milliseconds."""
    gather_on_rank0: bool
    rank: int | None = None
    missing: Mapping[int, list[str]] = attrs.field(factory=dict)
    """By rank, the reasons of missing scores."""

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """Return the ranks with a score strictly below a threshold: two sets, and two tables of sets by section."""
        return {
            "straggler_gpus_relative": self._below(self.gpu_relative_perf_scores, gpu_rel_threshold),
            "straggler_gpus_individual": self._below(self.gpu_individual_perf_scores, gpu_indiv_threshold),
            "straggler_sections_relative": self._sections(self.section_relative_perf_scores, section_rel_threshold),
            "straggler_sections_individual": self._sections(
                self.section_individual_perf_scores, section_indiv_threshold
            ),
        }

    def _sections(self, table: Mapping[str, Mapping[int, float]], threshold: float) -> dict[str, set[StragglerId]]:
        found = {name: self._below(scores, threshold) for name, scores in table.items()}
        return {name: ids for name, ids in found.items() if ids}

    def _below(self, scores: Mapping[int, float], threshold: float) -> set[StragglerId]:
        return {StragglerId(rank, self.rank_to_node[rank]) for rank, score in scores.items() if score < threshold}


def report_from(
    ours: ScoreReport, *, rank: int, gather_on_rank0: bool, seen: list[str], kinds: tuple[str, ...], elapsed_ms: float
) -> Report:
    """
    Return trackside's report, *ours*, as the peer's.

    Args:
        ours: The window's scores.
        rank: This process's rank.
        gather_on_rank0: Whether the report is on all ranks or on *rank* alone.
        seen: The sections of all windows so far; a gathered report has all of them for every rank.
        kinds: The kinds of scores that were asked for.
        elapsed_ms: The time that the report took, in ms.
    """
    shown = ours.ranks if gather_on_rank0 else [rank]
    sections = ours.summaries.get("sections", {})
    kernels = {name: kept for name, kept in ours.summaries.get("kernels", {}).items() if not is_nccl(name)}
    names = seen if gather_on_rank0 else list(sections)

    def gpu(scores: KindScores) -> dict[int, float]:
        return _by_rank(ours, scores.gpu, shown)

    def by_section(kind: str, scores: KindScores) -> dict[str, dict[int, float]]:
        if kind not in kinds:
            return {}
        return {name: _by_rank(ours, scores.sections.get(name) or [None] * len(ours.ranks), shown) for name in names}

    missing: dict[int, list[str]] = {}
    for silent in ours.missing:
        missing.setdefault(silent.rank, []).append(f"{silent.what}: {silent.why}")
    return Report(
        gpu_relative_perf_scores=gpu(ours.relative),
        section_relative_perf_scores=by_section("relative", ours.relative),
        gpu_individual_perf_scores=gpu(ours.individual),
        section_individual_perf_scores=by_section("individual", ours.individual),
        rank_to_node={one: ours.nodes[ours.ranks.index(one)] for one in shown},
        local_section_summaries=_in_units(sections, _NS_PER_MS),
        local_kernel_summaries=_in_units(kernels, _NS_PER_US),
        generate_report_elapsed_time=elapsed_ms,
        gather_on_rank0=gather_on_rank0,
        rank=rank,
        missing={one: missing[one] for one in shown if one in missing},
    )


def _by_rank(ours: ScoreReport, scores: list[float | None], shown: list[int]) -> dict[int, float]:
    if not scores:
        return {}
    table = dict(zip(ours.ranks, scores, strict=True))
    return {rank: _NAN if table[rank] is None else float(table[rank] or 0.0) for rank in shown}


def _in_units(summaries: Mapping[str, Mapping[str, float]], unit_ns: float) -> dict[str, dict[Statistic, float]]:
    return {
        name: {
            statistic: values[statistic.value] / (1.0 if statistic is Statistic.NUM else unit_ns)
            for statistic in Statistic
        }
        for name, values in summaries.items()
    }


_GATHER_TIMEOUT_S: Final = 300.0


class ReportGenerator:
    """
    Scores the times of ranks, window by window.

    Args:
        scores_to_compute: ``relative_perf_scores``, ``individual_perf_scores``, or both.
        gather_on_rank0: Whether rank 0 reports on all ranks, or each on itself.
        pg: It must be None, which means all ranks.
        node_name: The name of this node; its host name unless given.

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
        self.name_mapper: NameMapper = NameMapper()
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
            section_summaries: By name, the times of this rank's sections, in milliseconds.
            kernel_summaries: By name, the times of its kernels, in microseconds.
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
        """Return a report on one window, of which *mine* are this rank's events; every rank has to call it."""
        start_s = time.perf_counter()
        self._reports += 1
        # Individual scores alone need no communication with other ranks.
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
        """Return the group of all ranks, made when it is first needed; None if there is one process."""
        if self._group is None and is_distributed():
            self._group = RankGroup(_GATHER_TIMEOUT_S)
        return self._group

    def close(self) -> None:
        """Release the group of ranks."""
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
    """Return *summaries* as the columns of a window; NaN, for example of a deviation that is not known, becomes 0."""
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

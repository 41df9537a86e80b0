"""A report in the peer's shape."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from trackside.handlers.models.scores import KindScores, ScoreReport, StragglerId, is_nccl

__all__ = ["Report", "Statistic", "StragglerId"]

_NAN: Final = float("nan")
_NS_PER_MS: Final = 1e6
_NS_PER_US: Final = 1e3


class Statistic(enum.Enum):
    """What is known of a section's or kernel's durations."""

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
    """The scores of all ranks, or of this one. A missing score is NaN; why it is missing is in `missing`."""

    gpu_relative_perf_scores: Mapping[int, float]
    section_relative_perf_scores: Mapping[str, Mapping[int, float]]
    gpu_individual_perf_scores: Mapping[int, float]
    section_individual_perf_scores: Mapping[str, Mapping[int, float]]
    rank_to_node: Mapping[int, str]
    local_section_summaries: Summaries
    """Of this rank, in milliseconds."""
    local_kernel_summaries: Summaries
    """Of this rank, in microseconds."""
    generate_report_elapsed_time: float
    """In milliseconds."""
    gather_on_rank0: bool
    rank: int | None = None
    missing: Mapping[int, list[str]] = attrs.field(factory=dict)
    """By rank, why scores are missing."""

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """Return who has a score strictly below a threshold: two sets, and two tables of sets by section."""
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
    Return *ours* as the peer's report.

    Args:
        ours: The window's scores.
        rank: This process's.
        gather_on_rank0: Whether the report is on all ranks or on *rank* alone.
        seen: The sections of all windows so far, which a gathered report has for every rank.
        kinds: The kinds of scores that were asked for.
        elapsed_ms: How long it took to make.
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

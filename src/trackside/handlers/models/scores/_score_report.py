"""The scores of one window as a report, and as the events that carry it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs

from trackside.events import ConfigError, StragglerReport
from trackside.handlers.models.scores._window import Summary, packed, packed_numbers

RELATIVE: Final = "relative"
INDIVIDUAL: Final = "individual"
KINDS: Final = (RELATIVE, INDIVIDUAL)
"""Against the peers in the same window; against the rank's own past."""

NO_SAMPLES: Final = "no samples"
NOT_COMMON: Final = "not common to the peers"
EXCLUDED: Final = "excluded"
OFF: Final = "off"
SILENT: Final = "rank silent"

GPU: Final = "gpu"

Scores = list["float | None"]
"""One for each rank of a report; None where it is missing."""


class StragglerId(NamedTuple):
    """A rank and where it runs."""

    rank: int
    node: str


@attrs.frozen
class Missing:
    """The reason for which a rank has no score."""

    rank: int
    what: str
    """``gpu`` or ``section NAME``, after ``relative`` or ``individual`` if only that kind is missing; or ``all``."""
    why: str


@attrs.frozen(kw_only=True)
class KindScores:
    """The scores of one kind; empty if the kind is not computed."""

    gpu: Scores = attrs.field(factory=list)
    sections: dict[str, Scores] = attrs.field(factory=dict)

    def columns(self) -> Iterator[tuple[str, Scores]]:
        """Yield ``gpu`` or ``section NAME``, and its scores."""
        if self.gpu:
            yield GPU, self.gpu
        for name, scores in self.sections.items():
            yield f"section {name}", scores


def _check_threshold(_owner: object, field: Any, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigError(field.name, value, "give a score, from 0 on; 0.75 is usual, and 0 says never")


@attrs.frozen(kw_only=True)
class Thresholds:
    """Scores strictly below which a rank is a straggler."""

    gpu_relative: float = attrs.field(default=0.75, validator=_check_threshold)
    section_relative: float = attrs.field(default=0.75, validator=_check_threshold)
    gpu_individual: float = attrs.field(default=0.75, validator=_check_threshold)
    section_individual: float = attrs.field(default=0.75, validator=_check_threshold)

    def of(self, kind: str, what: str) -> float:
        """Return the threshold of scores of *kind* for *what*, ``gpu`` or ``section NAME``."""
        if kind == RELATIVE:
            return self.gpu_relative if what == GPU else self.section_relative
        return self.gpu_individual if what == GPU else self.section_individual


@attrs.frozen(kw_only=True)
class Straggler:
    """A rank that is too slow in one section or on its GPU, and not by noise."""

    rank: int
    node: str
    kind: str
    """``relative`` or ``individual``."""
    what: str
    """``gpu`` or ``section NAME``."""
    score: float
    lost_s_per_step: float
    """The seconds by which a step of this rank would be shorter at the reference."""
    since_window: int
    since_step: int
    """The window, and its first step, since which it has been slow in every window that scored it."""


@attrs.frozen(kw_only=True)
class ScoreReport:
    """
    One window's scores. Lists that are per rank are parallel to `ranks`.

    Its fields are plain data: ``attrs.asdict`` of it is JSON.
    """

    attempt: int
    window: int
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    """From the first rank's start to the last one's end, in ns since the epoch."""
    revision: int
    """The number of ranks' windows it was made from, which rises with each that comes late."""
    is_closed: bool
    """Whether all ranks had sent the window, or ranks that had sent it were ahead already."""
    group: str
    ranks: list[int]
    nodes: list[str]
    """Empty for a silent rank."""
    peers: list[str]
    """Each rank's value of the key `group`: ranks with equal values were compared."""
    relative: KindScores
    individual: KindScores
    off: list[str]
    """The kinds that are not computed."""
    waited_s_per_step: Scores
    """The time for which each rank waited for others, in the sections that are declared as waiting."""
    left_out_s_per_step: Scores = attrs.field(factory=list)
    """The time for which each rank's GPU was in kernels that are left out: NCCL's by default, which wait too."""
    coverage: Scores
    """The share of the rank's kernel time that its relative GPU score covers."""
    missing: list[Missing]
    stragglers: list[Straggler]
    """
    The ranks of which low scores are evidence, the worst first: by the aggregator's thresholds in two windows in a row,
    or all through one, at a cost that matters, and not where ranks wait for each other.
    """
    summaries: dict[str, Summary] = attrs.field(factory=dict)
    """``sections`` and ``kernels`` of the one rank whose statistics are kept."""

    def kinds(self) -> Iterator[tuple[str, KindScores]]:
        """Yield the kinds of scores and the scores."""
        yield RELATIVE, self.relative
        yield INDIVIDUAL, self.individual

    def identify_stragglers(
        self,
        *,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """
        Return the ranks with a score strictly below a threshold, as NVRx does. A missing score is below none.

        One window is no evidence that a rank is slow, and a short section costs nothing: see `stragglers`.

        Returns:
            Four keys, always: ``straggler_gpus_relative`` and ``straggler_gpus_individual`` with a set of
            `StragglerId`, ``straggler_sections_relative`` and ``straggler_sections_individual`` with such a set by
            section, those without stragglers left out.
        """
        return {
            "straggler_gpus_relative": self._below(self.relative.gpu, gpu_rel_threshold),
            "straggler_gpus_individual": self._below(self.individual.gpu, gpu_indiv_threshold),
            "straggler_sections_relative": self._sections_below(self.relative, section_rel_threshold),
            "straggler_sections_individual": self._sections_below(self.individual, section_indiv_threshold),
        }

    def _sections_below(self, scores: KindScores, threshold: float) -> dict[str, set[StragglerId]]:
        found = {name: self._below(column, threshold) for name, column in scores.sections.items()}
        return {name: ids for name, ids in found.items() if ids}

    def _below(self, scores: Scores, threshold: float) -> set[StragglerId]:
        return {StragglerId(self.ranks[place], self.nodes[place]) for place in below(scores, threshold)}


def below(scores: Scores, threshold: float) -> list[int]:
    """Return the indices of the *scores* strictly below *threshold*."""
    return [place for place, score in enumerate(scores) if score is not None and score < threshold]


_PART_BYTES: Final = 120_000
_RANK_BYTES: Final = 96
"""A rank's number, node, reasons and coverage; the node's name is most of it."""
_MAX_STRAGGLERS: Final = 200
_MAX_COLUMNS: Final = 400
_MAX_REASONS: Final = 200
_NAN: Final = float("nan")


def events_of(report: ScoreReport, at_ns: int) -> Iterator[StragglerReport]:
    """
    Yield *report* as events, each with its share of the ranks.

    Args:
        report: What to publish.
        at_ns: The time of the events.
    """
    columns = [(f"{kind} {what}", column) for kind, scores in report.kinds() for what, column in scores.columns()]
    shown = columns[:_MAX_COLUMNS]
    size = max(1, _PART_BYTES // (9 * len(shown) + _RANK_BYTES))
    starts = range(0, len(report.ranks), size) if report.ranks else (0,)
    missing = _by_rank(report.missing)
    for part, start in enumerate(starts):
        yield _part(
            report,
            at_ns,
            shown,
            missing,
            share=slice(start, start + size),
            part=part,
            parts=len(starts),
            left_out=len(columns) - len(shown),
        )


def _by_rank(missing: list[Missing]) -> dict[int, list[Missing]]:
    table: dict[int, list[Missing]] = {}
    for score in missing:
        table.setdefault(score.rank, []).append(score)
    return table


def _part(
    report: ScoreReport,
    at_ns: int,
    columns: Sequence[tuple[str, Scores]],
    missing: dict[int, list[Missing]],
    *,
    share: slice,
    part: int,
    parts: int,
    left_out: int,
) -> StragglerReport:
    ranks, nodes = report.ranks[share], report.nodes[share]
    known = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    names = [name for name, _ in columns]
    rows = zip(*(column[share] for _, column in columns), strict=True) if columns else ()
    scores = array("d", [_NAN if score is None else score for row in rows for score in row])
    reason_names: dict[str, int] = {}
    reasons = b"".join(_reasons(missing.get(rank, ()), names, reason_names) for rank in ranks)
    here = set(ranks)
    stragglers = [one for one in report.stragglers if one.rank in here]
    return StragglerReport(
        at_ns=at_ns,
        span_id=0,
        step=report.last_step,
        attempt=report.attempt,
        window=report.window,
        first_step=report.first_step,
        last_step=report.last_step,
        revision=report.revision,
        part=part,
        parts=parts,
        group=report.group,
        ranks=packed_numbers(ranks),
        nodes=list(known),
        node_of=packed_numbers(known[node] for node in nodes),
        columns=names,
        columns_left_out=left_out,
        scores=packed(scores),
        reasons=reasons,
        reason_names=list(reason_names),
        coverage=packed(array("d", [_NAN if part_of is None else part_of for part_of in report.coverage[share]])),
        stragglers=[
            [
                one.rank,
                one.node,
                f"{one.kind} {one.what}",
                one.score,
                one.lost_s_per_step,
                one.since_window,
                one.since_step,
            ]
            for one in stragglers[:_MAX_STRAGGLERS]
        ],
        stragglers_left_out=max(0, len(stragglers) - _MAX_STRAGGLERS),
    )


def _reasons(missing: Sequence[Missing], names: list[str], known: dict[str, int]) -> bytes:
    """Return one rank's reasons, a byte for each column."""
    if not missing:
        return bytes(len(names))
    codes = bytearray(len(names))
    for score in missing:
        what, why = score.what, score.why
        if len(known) >= _MAX_REASONS and why not in known:
            why = OFF  # only reasons of this kind have texts of their own
        code = known.setdefault(why, len(known)) + 1
        for place, name in enumerate(names):
            if what in ("all", name) or name.partition(" ")[2] == what:
                codes[place] = code
    return bytes(codes)

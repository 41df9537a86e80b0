"""A report as events: columnar, packed, in parts that fit a row."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from trackside.events import StragglerReport
from trackside.handlers.models.scores._packing import packed, packed_numbers
from trackside.handlers.models.scores._report import OFF, Missing, ScoreReport, Scores

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
    for told in missing:
        table.setdefault(told.rank, []).append(told)
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
    for told in missing:
        what, why = told.what, told.why
        if len(known) >= _MAX_REASONS and why not in known:
            why = OFF  # only these carry a text of their own
        code = known.setdefault(why, len(known)) + 1
        for place, name in enumerate(names):
            if what in ("all", name) or name.partition(" ")[2] == what:
                codes[place] = code
    return bytes(codes)

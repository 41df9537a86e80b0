"""
The rules by which something stands out: each looks at one kind of trouble.

What each of them means stands in docs/report.md; those that look at buckets are in `_bucket_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from trackside.views import _words as words
from trackside.views._bucket_rules import (
    checkpoints,
    custom,
    evaluation,
    is_worth,
    listed,
    of_all,
    restarts,
    unaccounted,
    waits_for_input,
)
from trackside.views._finding import Finding
from trackside.views._report import Report, Slow

STRAGGLER_FROM: Final = 0.02
SLOWDOWN_FROM: Final = 0.01
REGRESSION_FROM: Final = 0.01
"""Shares of the session's time; of the last, of a step's."""
WAITING_FROM: Final = 0.30
"""A share of a step."""
STOPPED_AFTER_S: Final = 60.0
STOPPED_AFTER_STEPS: Final = 10
_ALSO_FROM: Final = 0.3
"""What lost less than this share of what the slowest lost is not told with it."""
_NEAR_STEPS: Final = 100
_MOST_HOSTS: Final = 3
"""Of more slow ones the map tells."""


def _stragglers(report: Report) -> Iterator[Finding]:
    """Tell of the slowest hosts, each once: ranks of one host are slow for one reason, as a rule."""
    told: set[tuple[str, int]] = set()
    inputs = {finding.section for finding in waits_for_input(report)}
    for one in report.slow:
        where = (one.node, -1) if one.node and report.hosts > 1 else ("", one.rank)
        if where in told or one.what in inputs or not is_worth(report, one.lost_s, STRAGGLER_FROM):
            continue
        told.add(where)
        if len(told) > _MOST_HOSTS:
            return
        yield _straggler(report, one)


def _straggler(report: Report, one: Slow) -> Finding:
    near = [other for other in report.slow if other is not one and other.lost_s >= _ALSO_FROM * one.lost_s]
    own = [other.what for other in near if other.rank == one.rank]
    same = sorted({one.rank, *(other.rank for other in near if (other.node, other.what) == (one.node, one.what))})
    if not one.node or report.hosts == 1:
        same = [one.rank]  # that they share a host says nothing
    where = one.node or "an unknown host"
    what = one.what if one.what == "gpu" else f"section {one.what}"
    who = (
        f"Rank {one.rank} on {where} is slow"
        if len(same) == 1
        else f"Ranks {words.ranks_text(same)} on {where} are slow"
    )
    evidence = [
        (
            f"rank {one.rank} took {1 / max(one.score, 1e-9):.2f} times as long as its fastest peer "
            f"(score {one.score:.2f}), from step {one.since_step} to {one.until_step}"
        ),
    ]
    if own:
        evidence.append(f"it was slow in {', '.join(own[:4])} too")
    if len(same) > 1:
        look = f"Look at host {where}: several of its ranks are slow."
    elif one.what == "gpu" or own:
        look = f"Look at rank {one.rank}'s device on {where}: clocks, temperature, other processes on it."
    else:
        look = f"Look at what rank {one.rank} does in {one.what} that others do not, and at its host {where}."
    return Finding(
        kind="straggler",
        title=f"{who} in {what} since step {one.since_step}: the job lost {of_all(report, one.lost_s)}.",
        evidence=tuple(evidence),
        look=look,
        cost_s=one.lost_s,
        rank=one.rank,
        section=one.what,
        since_ns=one.since_ns,
        since_step=one.since_step,
    )


def _waiting(report: Report) -> Iterator[Finding]:
    share = report.waited_share
    if (
        share is None
        or share < WAITING_FROM
        or any(is_worth(report, one.lost_s, STRAGGLER_FROM) for one in report.slow)
    ):
        return
    cost = share * report.goodput.productive_s
    if not is_worth(report, cost, STRAGGLER_FROM):
        return
    yield Finding(
        kind="waiting",
        title=f"Ranks wait for each other: {words.percent(share)} of a step, {of_all(report, cost)}, "
        "and none of them is slow.",
        evidence=(f"waited in {listed(report, 'waiting') or 'collectives'}",),
        look="See what the network does, how much is exchanged in each step, and whether it overlaps with compute.",
        cost_s=cost,
        section=next((part.name for part in report.parts if part.kind == "waiting"), ""),
    )


def _slowdown(report: Report) -> Iterator[Finding]:
    one = report.slowdown
    if one is None or not is_worth(report, one.cost_s, SLOWDOWN_FROM):
        return
    if one.kind == "input" and any(waits_for_input(report)):
        return
    near = max(_NEAR_STEPS, one.step // 5)
    if any(abs((found.since_step or 0) - one.step) <= near for found in _stragglers(report)):
        return  # others wait for a rank that became slow then, and that is said there
    grew = one.after_ns / one.before_ns - 1
    evidence = [f"{words.duration(one.before_ns)} a step before, {words.duration(one.after_ns)} since"]
    kind, look = "slowdown", "See what else changed then: the data, the length of the sequences, other jobs."
    if one.part:
        evidence.append(
            f"{one.part} grew most, from {words.duration(one.part_before_ns)} to {words.duration(one.part_after_ns)}"
        )
        if one.kind == "compute":
            kind, look = (
                "compute-bound",
                "All ranks compute slower: look at clocks and temperature, and what runs there.",
            )
        elif one.kind == "input":
            kind, look = "input-bound", "Loading became slower: see the storage, and what the loader read then."
        elif one.kind == "waiting":
            kind, look = "waiting", "Ranks wait longer for each other: see the network."
    yield Finding(
        kind=kind,
        title=f"Steps take {words.percent(grew)} longer since step {one.step}"
        f"{f', most of it in {one.part}' if one.part else ''}: {of_all(report, one.cost_s)}.",
        evidence=tuple(evidence),
        look=look,
        cost_s=one.cost_s,
        section=one.part,
        since_ns=one.at_ns,
        since_step=one.step,
    )


def _memory(report: Report) -> Iterator[Finding]:
    if not report.growth:
        return
    one = report.growth[0]
    yield Finding(
        kind="memory-growth",
        title=f"Memory grows without end: {one.name} of rank {one.rank} rose from {words.amount(one.first, 'bytes')} "
        f"to {words.amount(one.last, 'bytes')}.",
        evidence=(
            (
                f"by {words.amount(one.per_hour, 'bytes')} an hour, since {words.clock(one.since_ns)}, "
                f"and still at the end; on {words.plural(one.ranks, 'rank')}"
            ),
        ),
        look="Look for what is kept from step to step: losses with their graph, lists, caches without a bound.",
        rank=one.rank,
        section=one.name,
        since_ns=one.since_ns,
    )


def _regression(report: Report) -> Iterator[Finding]:
    found = report.baseline
    if found is None or found.change is None or not found.is_shown or found.change < REGRESSION_FROM:
        return
    assert found.low is not None
    assert found.high is not None
    cost = report.goodput.productive_s * found.change / (1 + found.change)
    yield Finding(
        kind="regression",
        title=f"Steps take {words.percent(found.change)} longer than the baseline's: {of_all(report, cost)}.",
        evidence=(
            (
                f"{words.duration(found.before)} in the baseline, {words.duration(found.after)} here; "
                f"the difference is between {words.change(found.low)} and {words.change(found.high)}"
            ),
        ),
        look="Run trackside compare on both: it says which buckets and which parts of the step changed.",
        cost_s=cost,
    )


def _stopped(report: Report) -> Iterator[Finding]:
    rows = [row for row in report.ranks if row.stepped_ns]
    usual = report.goodput.step_time.p50_s or 0.0
    if report.state == "ended" or not rows:
        return
    since_ns = max(row.stepped_ns for row in rows)
    silent_s = (report.goodput.end_ns - since_ns) / 1e9
    if silent_s < max(STOPPED_AFTER_S, STOPPED_AFTER_STEPS * usual):
        return
    odd = _odd_one(report)
    behind = min(rows, key=lambda row: (row.last_step, row.rank != odd, row.stepped_ns))
    evidence = [f"rank {behind.rank} stopped after step {behind.last_step}"]
    if odd == behind.rank:
        evidence[0] += ", and is not where all the others are"
    evidence += [
        f"rank {row.rank} is in {row.name}, for {words.duration(row.seen_ns - row.start_ns)}" for row in report.open[:4]
    ]
    yield Finding(
        kind="stopped",
        title=f"No step has ended for {words.seconds(silent_s)}, since step {max(row.last_step for row in rows)}; "
        f"half of them took less than {words.seconds(usual)}.",
        evidence=tuple(evidence),
        look=f"See what rank {behind.rank} does: its process {behind.pid} on {behind.host or 'its host'}.",
        cost_s=silent_s,
        rank=behind.rank,
        since_step=behind.last_step,
        since_ns=since_ns,
    )


def _odd_one(report: Report) -> int | None:
    """Return the rank that is in another span than all the others; None if there is no such one."""
    counts = Counter(row.name for row in report.open)
    alone = [row.rank for row in report.open if counts[row.name] == 1]
    return alone[0] if len(counts) == 2 and len(alone) == 1 else None  # noqa: PLR2004


def _unaccounted(report: Report) -> Iterator[Finding]:
    yield from unaccounted(report, sum(finding.cost_s for finding in _stopped(report)))


RULES: Final[tuple[Callable[[Report], Iterator[Finding]], ...]] = (
    _stopped,
    restarts,
    checkpoints,
    waits_for_input,
    _stragglers,
    _waiting,
    _slowdown,
    _memory,
    _regression,
    evaluation,
    custom,
    _unaccounted,
)

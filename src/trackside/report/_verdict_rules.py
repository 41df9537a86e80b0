"""
The rules of the verdict: each looks for one kind of trouble and explains why it reported something or did not.

docs/verdicts.md describes each rule with its inputs and thresholds.
"""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from trackside.core import text as words
from trackside.events import span_names
from trackside.handlers.eventlog import UNWRITTEN_S
from trackside.handlers.models.goodput import BEFORE_STEPS
from trackside.report._report import (
    NOTHING,
    AttemptBar,
    ErrorRow,
    Finding,
    Heatmap,
    RankRow,
    Report,
    Ruling,
    StallRow,
    Standstill,
    Unwritten,
    Verdict,
    shown,
)
from trackside.report._whatif import OUTSIDE, LateRank, is_gap, kind_of, since_words, tile_words

# A cost is a finding if it takes at least such a share of the session's time.
RESTARTS_FROM: Final = 0.02
CHECKPOINTS_FROM: Final = 0.05
INPUT_FROM: Final = 0.10
STRAGGLER_FROM: Final = 0.02
PAUSES_FROM: Final = 0.03
SLOWDOWN_FROM: Final = 0.01
EVALUATION_FROM: Final = 0.20
CUSTOM_FROM: Final = 0.10
STARTUP_FROM: Final = 0.25
OPEN_FROM: Final = 0.05
UNACCOUNTED_FROM: Final = 0.30
REGRESSION_FROM: Final = 0.01
"""A share of a step, like the next four."""
WAITING_FROM: Final = 0.40
WAITING_OUTSIDE_FROM: Final = 0.60
BOUND_FROM: Final = 0.50
UNEVEN_FROM: Final = 0.30
LEAST_COST_S: Final = 0.2
LEAST_ONCE_S: Final = 3.0
"""The least cost of something that a job does once: starting up, ending."""
LEAST_UNACCOUNTED_S: Final = 1.0
STOPPED_AFTER_S: Final = 60.0
STOPPED_AFTER_STEPS: Final = 10
LEAST_STOOD_S: Final = 5.0
"""If no step ended for this long and for ten usual steps before ranks died, the finding says that they perhaps hung."""
DIED_AFTER_S: Final = 60.0
"""If the newest event is older than this, a log without an end belongs to a rank that died."""
_Ruled = tuple[list[Finding], str]
"""The findings of a rule, and the reason why it has some or none."""
_NEAR_STEPS: Final = 100
_MOST_HOSTS: Final = 3
_MOST_LISTED: Final = 4
_MOST_RANGES: Final = 8

RESTORE: Final = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
SAVE: Final = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
WASTED: Final = "WASTED_PROGRESS_FROM_DISRUPTION"
RECOVERY: Final = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
LOADING: Final = "DATA_LOADING_SYNC"
VALIDATION: Final = "VALIDATION"
STARTING: Final = ("ACCELERATOR_INITIALIZATION", "TRAINING_PREP", "PROGRAM_STARTUP")

FAILURES: Final = ("out-of-memory", "exception", "died", "exit", "missing-rank", "stopped", "not-finite")
"""The kinds of findings that come before all others; ``_failure_order`` gives their order."""


def judge(report: Report) -> Verdict:
    """Return the conclusions of *report*: failures first, then the others by cost."""
    ruled = {name: rule(report) for name, rule in RULES.items()}
    rulings = tuple(Ruling(rule=name, findings=tuple(own), because=why) for name, (own, why) in ruled.items())
    found = [finding for ruling in rulings for finding in ruling.findings]
    elapsed = report.goodput.elapsed_s
    # A finding without a known cost is sorted as if it took a twentieth of the time.
    found.sort(key=lambda one: (*_failure_order(one, report), _lasts(one), -(one.cost_s or elapsed / 20)))
    bound = _bound(report, found)
    state = "bad" if found else "good"
    headline = found[0].title if found else NOTHING if report.steps or report.parts else _NO_STEPS
    if not found and not all(row.has_good_end for row in report.ranks):
        state, headline = "running", "Still running, as far as the logs say; nothing stands out so far."
    return Verdict(
        headline=headline,
        summary=_summary(report, bound),
        state=state,
        bound=bound,
        findings=tuple(found),
        rulings=rulings,
    )


_NO_STEPS: Final = (
    "No training step was recorded, so nothing can be said of its speed: it came to none, or needs "
    "trackside.instrument(), or training_iteration(step) around each step."
)


def _lasts(finding: Finding) -> int:
    """
    Return 0 for a cost that grows with the length of the job, 1 for one that comes once, 2 for one of unknown cause.
    """
    return {"startup": 1, "shutdown": 1, "unaccounted": 2, "not-finite": 2}.get(finding.kind, 0)


def _failure_order(finding: Finding, report: Report) -> tuple[int, int]:
    """Return the sort key of a finding: failures by time, then those that follow from others, then the rest."""
    if finding.kind not in FAILURES or finding.until_step is not None:  # a loss that became finite again is none
        return len(FAILURES), 0
    if finding.kind == "not-finite":  # nothing is worse than this in a job that ran to its end
        return (0 if all(row.has_good_end for row in report.ranks) else 3), 0
    since_ns = finding.since_ns or 0
    is_lost_peer = all(error.is_of_lost_peer for error in _fatal(report))
    if finding.kind == "exception" and is_lost_peer:
        return 2, since_ns
    if finding.kind == "missing-rank" and not is_lost_peer:  # the launcher ended it, perhaps, before it wrote anything
        return 2, since_ns
    if finding.kind == "died" and not any(row.exited_ns == since_ns for row in report.ranks):
        since_ns += round(UNWRITTEN_S * 1e9)  # the rank may have lived that much longer than its log shows
    return 1, since_ns


def _summary(report: Report, bound: str) -> str:
    result = report.goodput
    open_step, open_s = result.step_time.open_step, result.step_time.open_s
    unended = ""
    if open_step is not None and open_s >= OPEN_FROM * result.elapsed_s:
        unended = f", {words.seconds(open_s)} of them into step {open_step}, which has not ended"
    lines = [
        (
            f"Goodput {words.percent(result.goodput)}: {words.seconds(result.productive_s)} of "
            f"{words.seconds(result.elapsed_s)} went into steps that count{unended}."
        )
    ]
    times = report.step_time
    if times.p50_s is not None:
        whose = times.whose(report.ranks_total)
        lines.append(f"Half of the steps{whose} took less than {words.seconds(times.p50_s)}.")
    if bound:
        share = sum(part.share for part in report.parts if part.kind == bound)
        bound_words = _BOUND_WORDS[bound] if bound != "waiting" or _is_waited_for(report, share) else _EXCHANGE_BOUND
        lines.append(f"Steps are {bound_words}: {words.percent(share, 0)} of one is {listed(report, bound)}.")
        if bound == "compute" and (backward := _may_wait_in(report)):
            lines.append(f"{backward} may hold the wait for the other ranks too: no other part is known to.")
    if (waited := _waited_for_last(report)) >= UNEVEN_FROM and not _is_cause_known(report):
        lines.append(
            f"{words.percent(waited, 0)} of a step is waiting for the rank that comes last, and none of them is late "
            "beyond noise: it is another one from step to step."
        )
    if report.what_if.ranks > 1 and not any(part.name != OUTSIDE for part in report.parts):
        lines.append(
            "No part of a step is measured, so a rank that others wait for cannot be distinguished from them: use "
            "trackside.instrument() or spans."
        )
    losses = lost_words(report)
    if losses:
        lines.append(f"{losses[0].upper()}{losses[1:]}. There may be more than this report shows.")
    return " ".join(lines)


_BOUND_WORDS: Final = {"input": "input-bound", "compute": "compute-bound", "waiting": "bound by waiting for others"}
_EXCHANGE_BOUND: Final = "bound by the exchange between ranks"
"""These words are used if the exchange takes most of this time, and no rank for which the others wait."""


def _is_waited_for(report: Report, share: float) -> bool:
    """Return whether half of the waiting, which takes this *share* of a step, is for ranks that come or save last."""
    # The what-if leaves this out.
    stood_s = sum(one.took_s - one.least_s for one in report.standstills if one.waited_for is None)
    stood = stood_s / (_stepped_s(report) or math.inf)
    return bool(worthy(report)) or _waited_for_last(report) + stood >= share / 2


def _waited_for_last(report: Report) -> float:
    """Return the share of a step that ranks spend waiting for the last one of them, beyond the exchange itself."""
    step_ns = sum(part.mean_ns for part in report.parts)
    return report.what_if.waited_ns / step_ns if step_ns else 0.0


def _is_cause_known(report: Report) -> bool:
    """Return whether it is known for what ranks wait: for late ones, or for their data, of which one comes last."""
    return bool(report.late or report.what_if.in_turn or report.pauses or _input(report)[0])


def _may_wait_in(report: Report) -> str:
    """Return the backward pass, if it may contain the wait for other ranks because nothing shows it elsewhere."""
    names = {part.name for part in report.parts if "backward" in part.name.lower() and not is_gap(part.name)}
    elsewhere = {part.name for part in report.parts if part.kind == "waiting"} | {*report.what_if.waits_in}
    return min(names, default="") if report.ranks_total > 1 and elsewhere <= names else ""


def _bound(report: Report, found: Sequence[Finding]) -> str:
    """Return the kind with the largest share of a step; empty if the share is small or a finding contradicts it."""
    shares: dict[str, float] = {}
    for part in report.parts:
        shares[part.kind] = shares.get(part.kind, 0.0) + part.share
    shares.pop("other", None)
    if not shares:
        return ""
    kind, share = max(shares.items(), key=lambda item: item[1])
    others = {"input-bound": "input", "waiting": "waiting"}
    is_disputed = any(others.get(finding.kind, kind) != kind for finding in found)
    return kind if share >= BOUND_FROM and not is_disputed else ""


# --- words that several rules and views use ------------------------------------------------------------------------


def loss_words(report: Report) -> str:
    """Return words for the first, the last and the least loss of *report*, which has at least two losses."""
    (_, first), *_, (_, last) = report.loss
    least = min(one.low for _, one in report.loss)
    named = [
        f"{words.amount(one.median)} "
        + (f"in step {one.last_step}" if one.count == 1 else f"(median of steps {one.first_step} to {one.last_step})")
        for one in (first, last)
    ]
    return f"{', '.join(named)}, least {words.amount(least)}{report.step_time.whose(report.ranks_total)}"


def not_drawn_words(report: Report) -> str:
    """Return words for the losses that the curve leaves out."""
    return f"the loss of {words.plural(report.losses_not_drawn, 'step')} is NaN or infinite, and left out"


def whole_step_words(report: Report) -> str:
    """Return words for the length of all parts of a step together, as a mean over the steps."""
    whose = " of all ranks" if report.ranks_total > 1 else ""
    after = ", starting up left out" if report.is_start_left_out else ""
    return f"{words.duration(sum(part.mean_ns for part in report.parts))}, the mean step{whose}{after}"


def lost_words(report: Report) -> str:
    """Return words for the events that were lost, with a bound if their number is not known; empty if none were."""
    lines = []
    if report.losses.total:
        lines.append(f"{words.plural(report.losses.total, 'event')} missing")
    lines += _unwritten_words(report)
    if report.missing_ranks:
        lines.append(f"all events of {_ranks(report.missing_ranks)} missing")
    return "; ".join(lines)


def limited_words(report: Report) -> list[str]:
    """Return words for each control verb by which less was recorded for some time."""
    what = {
        "pause": "nothing but lifecycle events was",
        "sample": "only some of the steps were",
        "priority": "only events of a higher priority were",
    }
    return [
        f"{what[verb]} recorded for {words.seconds(length_s)}: trackside ctl {verb}"
        for verb, length_s in report.losses.limited_s.items()
    ]


def _unwritten_words(report: Report) -> Iterator[str]:
    """Yield words for each attempt, latest first: its ranks without an end record and how many steps may be missing."""
    by_attempt: dict[int, list[Unwritten]] = {}
    for one in sorted(report.losses.unwritten, key=lambda one: -one.attempt):
        by_attempt.setdefault(one.attempt, []).append(one)
    for attempt, own in list(by_attempt.items())[:_MOST_LISTED]:
        most = max(one.steps for one in own)
        steps = f"up to {words.plural(most, 'step')}, or the last second," if most else "the last second"
        within = f" in attempt {attempt}" if len(report.attempts) > 1 else ""
        ranks = [one.rank for one in own]
        yield f"{_ranks(ranks)} {'have' if len(own) > 1 else 'has'} no end record{within}: {steps} may be in no log"
    if len(by_attempt) > _MOST_LISTED:
        yield f"ranks of {words.plural(len(by_attempt) - _MOST_LISTED, 'earlier attempt')} have none either"


def _ranges(ranks: Iterable[int]) -> str:
    return words.ranges(ranks, most=_MOST_RANGES)


def _ranks(ranks: Collection[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {_ranges(ranks)}"


def listed(report: Report, kind: str) -> str:
    """Return the names and shares of the parts of this *kind*, the shortest as one; only the name if there is one."""
    parts = [part for part in report.parts if part.kind == kind]
    if len(parts) == 1:
        return parts[0].name
    shares = [(part.name, part.share) for part in parts[:3]]
    if len(parts) > len(shares):
        shares.append((f"{len(parts) - len(shares)} more", sum(part.share for part in parts[3:])))
    return ", ".join(f"{name} {words.percent(share, 0)}" for name, share in shares)


def of_all(report: Report, cost_s: float) -> str:
    """Return words for a cost and its share of the session's time."""
    share = cost_s / report.goodput.elapsed_s if report.goodput.elapsed_s else None
    return f"{words.seconds(cost_s)}, {words.percent(share)} of the time"


def bucket(report: Report, name: str) -> float:
    """Return the seconds in a bucket."""
    length = report.goodput.badput_s.get(name, 0.0)
    return float(sum(length.values())) if isinstance(length, dict) else float(length)


def _stood_still_s(report: Report, name: str) -> float:
    """
    Return the time of saves or evaluations, in seconds.

    This includes time in which the rank whose account is the job's only waited for another rank.
    """
    return sum(bar.buckets_s.get(name, 0.0) for bar in report.attempts)


def _is_worth(report: Report, cost_s: float, threshold: float) -> bool:
    elapsed = report.goodput.elapsed_s
    return cost_s >= LEAST_COST_S and elapsed > 0 and cost_s / elapsed >= threshold


def _too_little(report: Report, what: str, cost_s: float, threshold: float) -> str:
    """Return words that explain why a cost is too small to be a finding."""
    share = cost_s / report.goodput.elapsed_s if report.goodput.elapsed_s else 0.0
    return (
        f"{what} {words.seconds(cost_s)}, {words.percent(share)} of the time; from {words.percent(threshold, 0)} and "
        f"{LEAST_COST_S:g} s on it would be said"
    )


def _paste(report: Report, command: str, *options: str) -> str:
    """Return a command line for the logs of *report*, ready to paste."""
    return " ".join(["trackside", command, *map(shlex.quote, report.paths), *options])


def _steps_around(step: int) -> str:
    return f"{max(0, step - 2)}-{step + 8}"


def _where(row: RankRow) -> str:
    return f"process {row.pid} on {row.host}" if row.host else f"process {row.pid}"


# --- failures ------------------------------------------------------------------------------------------------------


def _fatal(report: Report) -> list[ErrorRow]:
    """Return the exceptions that ended ranks of the last attempt."""
    return [error for error in report.errors if error.is_fatal and error.at_ns >= report.attempts[-1].start_ns]


def _raised(report: Report) -> _Ruled:
    fatal = _fatal(report)
    if not fatal:
        other = len(report.errors)
        because = (
            f"{words.plural(other, 'exception')} left spans, and the job went on" if other else "none was recorded"
        )
        return [], because
    first = min(fatal, key=lambda error: (error.is_of_lost_peer, not error.message, error.at_ns))
    where = f" in {first.name}" if first.name else ""
    last_step = next((row.last_step for row in report.ranks if row.rank == first.rank), -1)
    at = f" in step {first.step}" if first.step >= 0 else " before its first step"
    if first.step < 0 <= last_step:
        at = f" after step {last_step}"
    title = f"{_one_line(first.error, 100)} on rank {first.rank}{at}{where}."
    if first.is_out_of_memory:
        title = f"Rank {first.rank} ran out of memory{at}{where}: {_one_line(first.error).rstrip('.')}."
    same = sorted({error.rank for error in fatal if error.error == first.error and error.rank != first.rank})
    evidence = [f"it ended rank {first.rank}, at {words.clock(first.at_ns)}"]
    if same:
        evidence.append(f"the same on {_ranks(same)}")
    others = [error for error in fatal if error.rank != first.rank and error.error != first.error]
    evidence += [f"rank {one.rank} after that: {_one_line(one.error)}" for one in others[:_MOST_LISTED]]
    if report.exit_status:
        evidence.append(f"the launcher exited with {words.exit_words(report.exit_status)}")
    look = "Read its traceback: " + _paste(report, "tail", "-v", "-t", "'*exception*'")
    if not first.message:
        look = f"Read the program's own output. Its last events: {_paste(report, 'tail', '-n', '40')}"
    if first.is_out_of_memory:
        look = "Use a smaller batch, accumulate gradients, or checkpoint activations. Memory over time: " + _paste(
            report, "report", "--html", "report.html"
        )
    return [
        Finding(
            kind="out-of-memory" if first.is_out_of_memory else "exception",
            title=title,
            evidence=tuple(evidence),
            look=look,
            rank=first.rank,
            section=first.name,
            since_ns=first.at_ns,
            since_step=next((step for step in (first.step, last_step) if step >= 0), None),
            ranks=tuple(sorted({error.rank for error in fatal})),
        )
    ], "an exception was the last that its process recorded"


_PLACE_IN_C: Final = re.compile(r"\[\S*:\d+\] ")
"""The position in torch's sources at the beginning of its messages."""


def _one_line(text: str, most: int = 160) -> str:
    line = _PLACE_IN_C.sub("", " ".join(text.split()), count=1)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _died(report: Report) -> _Ruled:
    bad = [row for row in report.ranks if not row.has_good_end and not row.error]
    bad = [row for row in bad if row.rank not in {one.rank for one in _fatal(report)}]
    if not bad:
        return [], "every rank has an end record"
    dead = [row for row in bad if _is_dead(report, row)]
    if not dead:
        return [], (
            f"{words.plural(len(bad), 'rank')} without an end record, heard of until the newest event, which "
            f"is {words.seconds(report.age_s)} old"
        )
    if _is_hung(report, dead):
        return [], "the ranks lived on after their last step: see the rule stopped"
    first, is_clear = _first_dead(dead)
    ranks = sorted(row.rank for row in dead)
    span = next((row.name for row in report.open if row.rank == first.rank), "")
    furthest = first if is_clear else max(dead, key=lambda row: row.last_step)
    after = words.step(furthest.last_step)
    within = f", in {span}" if span else ""
    if first.exit_status is not None:
        within += f" ({words.exit_words(first.exit_status)})"
    look = (
        f"It was {_where(first)}: see the launcher's output and the kernel's log (dmesg) for a signal or the OOM "
        f"killer. Its last events: {_paste(report, 'tail', '-n', '40')}"
    )
    outlived = any(row.has_good_end and row.last_step > first.last_step + 1 for row in report.ranks)
    if len(dead) == 1 and report.losses.damaged_bytes and outlived:  # a log that was cut off also ends like this
        title = f"The log of rank {first.rank} breaks off {after}{within}: it is torn, or the rank died."
        look = f"Look for the whole file where it was written; which bytes are damaged: {_paste(report, 'info')}"
    elif len(dead) == 1:
        title = f"Rank {first.rank} died {after}{within}: its log has no end."
    elif is_clear:
        others = _ranks([rank for rank in ranks if rank != first.rank])
        title = f"Rank {first.rank} died {after}{within}, then {others}: their logs have no end."
    else:
        who = f"All {len(dead)} ranks" if len(dead) == report.ranks_total else f"Ranks {_ranges(ranks)}"
        title = f"{who} died, {after.replace('its', 'their')}: which one was first cannot be seen."
        look = (
            "The launcher's output says which one failed first (torchrun: under Root Cause), and started by `trackside "
            f"run` the report would. Their last events: {_paste(report, 'tail', '-n', '40')}"
        )
    latest = report.attempts[-1].number if report.attempts else 0
    unwritten = {one.rank: one.steps for one in report.losses.unwritten if one.attempt == latest}
    evidence = [
        f"rank {row.rank}: last heard of at {words.clock(row.last_ns)}, {words.step(row.last_step)}; "
        f"its last second{_about_steps(unwritten.get(row.rank, 0))} may be in no log{_exited(row)}"
        for row in sorted(dead, key=lambda row: row.exited_ns or row.last_ns)[:_MOST_LISTED]
    ]
    stepped_ns = max(row.stepped_ns for row in report.ranks)
    stood_s = (min(row.last_ns for row in dead) - stepped_ns) / 1e9 if stepped_ns else 0.0
    usual_s = report.step_time.p50_s or 0.0
    if stood_s >= max(LEAST_STOOD_S, STOPPED_AFTER_STEPS * usual_s):
        evidence.append(
            f"no step had ended for {words.seconds(stood_s)} by then; half of them took less than "
            f"{words.seconds(usual_s)}: perhaps it hung, and was killed"
        )
    began_s = (min(row.last_ns for row in dead) - report.attempts[-1].start_ns) / 1e9
    if not stepped_ns and began_s >= STOPPED_AFTER_S and (report.steps or not report.parts):
        evidence.append(
            f"no step was recorded in the {words.seconds(began_s)} since it began: perhaps it hung before its first, "
            "and was killed"
        )
    if not is_clear:
        evidence.append("the launcher kills the others at once, and the last second of each may be in no log")
    if report.exit_status is not None:
        evidence.append(f"the launcher exited with {words.exit_words(report.exit_status)}")
    alive = [row for row in report.ranks if row.has_good_end]
    if alive:
        evidence.append(f"{words.plural(len(alive), 'rank')} ended in good order")
    return [
        Finding(
            kind="died",
            title=title,
            evidence=tuple(evidence),
            look=look,
            rank=first.rank if is_clear else None,
            section=span if is_clear else "",
            since_ns=first.exited_ns or first.last_ns,
            since_step=furthest.last_step if furthest.last_step >= 0 else None,
            ranks=tuple(ranks),
        )
    ], "logs without an end whose processes were not heard of any more"


def _about_steps(steps: int) -> str:
    """Return words for the *steps* that a killed rank's log may lack; empty if their number is not known."""
    return f", some {words.plural(steps, 'step')} if they took as long as those before," if steps else ""


def _first_dead(dead: Sequence[RankRow]) -> tuple[RankRow, bool]:
    """
    Return the row of the rank that died first, and whether that is certain.

    A launcher kills the other ranks within moments, and the last second of each may be in no log. Then the order is
    known only from `trackside run`, because it sees processes exit.
    """
    exits_ns = {row.rank: row.exited_ns for row in dead if row.exited_ns is not None}
    if len(exits_ns) == len(dead):
        return min(dead, key=lambda row: exits_ns[row.rank]), True
    ordered = sorted(dead, key=lambda row: (row.last_ns, row.last_step, row.rank))
    is_clear = len(ordered) == 1 or (ordered[1].last_ns - ordered[0].last_ns) / 1e9 >= UNWRITTEN_S
    return ordered[0], is_clear


def _exited(row: RankRow) -> str:
    """Return words to end a sentence with: how the process of *row* exited; empty if its exit was not seen."""
    if row.exited_ns is None:
        return ""
    how = "" if row.exit_status is None else f" with {words.exit_words(row.exit_status)}"
    return f"; its process exited{how} at {words.clock(row.exited_ns, has_ms=True)}"


def _exit(report: Report) -> _Ruled:
    """Find a program or a rank that failed although its logs end in good order."""
    left = _left_early(report)
    if left is not None:
        row, error = left
        finding = Finding(
            kind="exit",
            title=f"Rank {row.rank} ended {words.step(row.last_step)}, "
            "before the others, which lost the connection to it.",
            evidence=(
                f"its log ends in good order at {words.clock(row.last_ns)}: its program returned, or called sys.exit()",
                f"rank {error.rank} after that: {_one_line(error.error)}",
            ),
            look=f"See why its program ended there. Its last events: {_paste(report, 'tail', '-n', '40')}",
            rank=row.rank,
            since_step=row.last_step if row.last_step >= 0 else None,
            since_ns=row.last_ns,
            ranks=(row.rank,),
        )
        return [finding], "a rank ended in good order before others lost the connection to it"
    if not report.exit_status:
        because = "the launcher exited with status 0" if report.exit_status == 0 else "no launcher was recorded"
        return [], because
    if _raised(report)[0] or _died(report)[0]:
        return [], "the ranks say why: see the rules raised and died"
    how = words.exit_words(report.exit_status)
    finding = Finding(
        kind="exit",
        title=f"The program exited with {how}, though every rank that left a log ended in good order.",
        evidence=(f"{words.plural(len(report.missing_ranks), 'rank')} left no log",) if report.missing_ranks else (),
        look=f"Read the program's own output. What the ranks did last: {_paste(report, 'tail', '-n', '40')}",
        since_ns=report.goodput.end_ns,
    )
    return [finding], f"its launcher saw it exit with {how}"


def _left_early(report: Report) -> tuple[RankRow, ErrorRow] | None:
    """
    Return the first rank that ended well, and the first exception of a rank that lost the connection to it.

    None if there is none, or if a rank neither ended well nor lost the connection.
    """
    lost = [error for error in _fatal(report) if error.is_of_lost_peer]
    ended = [row for row in report.ranks if row.has_good_end]
    if not lost or not ended or len({error.rank for error in lost}) + len(ended) < len(report.ranks):
        return None
    error = min(lost, key=lambda error: error.at_ns)
    row = min(ended, key=lambda row: row.last_ns)
    # A connection is closed shortly before or after the end is recorded.
    return (row, error) if row.last_ns <= error.at_ns + UNWRITTEN_S * 1e9 else None


def _is_dead(report: Report, row: RankRow) -> bool:
    """
    Return whether a rank without an end died: its liveness says so, others outlived it, or the newest event is old.
    """
    if row.state == "died" or report.age_s > DIED_AFTER_S:
        return True
    if report.ranks_total > 1 and all(other.state == "ended" for other in report.ranks if other.rank != row.rank):
        return True
    newest_ns = max(other.last_ns for other in report.ranks)
    return (newest_ns - row.last_ns) / 1e9 > max(3.0, 3 * row.interval_s)


def _is_hung(report: Report, dead: Sequence[RankRow]) -> bool:
    """Return whether all *dead* ranks lived long after their last step, and fell silent together."""
    if any(row.has_good_end for row in report.ranks):
        return False
    silent_s = _silent_s(report)
    newest_ns = max(row.last_ns for row in report.ranks)
    together = all((newest_ns - row.last_ns) / 1e9 <= max(10.0, 3 * row.interval_s) for row in dead)
    return together and (silent_s >= _stopped_after_s(report) or bool(_stalls(report)))


def _missing(report: Report) -> _Ruled:
    if not report.missing_ranks:
        return [], "every rank of the last attempt left a log"
    ranks = list(report.missing_ranks)
    many = "s" if len(ranks) > 1 else ""
    return [
        Finding(
            kind="missing-rank",
            title=f"Rank{many} {_ranges(ranks)} of {report.ranks_total} left no log: nothing is known of "
            f"{'them' if many else 'it'}.",
            evidence=(
                (
                    f"the launcher started {words.plural(report.ranks_total, 'rank')}; of "
                    f"{report.ranks_total - len(ranks)} there is a log"
                ),
            ),
            look="It died before it wrote anything, or wrote elsewhere: see that all ranks call "
            "trackside.start() with a directory that all of them share. What is here: " + _paste(report, "info"),
            rank=ranks[0],
            ranks=tuple(ranks),
        )
    ], "ranks that the launcher counted have no log"


_NOT_FINITE: Final = {"nan": "NaN", "inf": "infinite", "-inf": "negative infinite", "": "NaN or infinite"}


def _not_finite(report: Report) -> _Ruled:
    found = report.not_finite
    if found is None:
        return [], "no loss was NaN or infinite, or none was recorded"
    low, high = found.steps
    step = f"step {low}" if low == high else f"one of the steps {low} to {high}"
    later = [rank for rank in found.ranks if rank not in found.first_ranks]
    ranks = f"on {_ranks(found.first_ranks)}{f', and later on {_ranks(later)}' if later else ''}"
    subject, value = found.name or "The loss", _NOT_FINITE[found.value]
    title = f"{subject} is {value} since {step}, {ranks}."
    look = (
        "Start again from a checkpoint before that step, and look at its batch, the learning rate and the gradients' "
        "norm."
    )
    if found.name and report.loss:
        look = f"The iterations' own loss is finite: see what {found.name} is computed from."
    evidence = [f"first on rank {found.first_rank}, at {words.clock(found.at_ns)}"]
    if found.finite_after:
        is_one = found.count == 1
        many = words.plural(found.count, "value" if found.name else "step")
        # Of the windows of a counter the order of its values is not known.
        after = "later" if found.name else f"in the {found.finite_after:,} after {'it' if is_one else 'them'}"
        title = (
            f"{subject} was {value} in {many}, {step if is_one else f'from {step} on'}, and finite {after}, {ranks}."
        )
        look = "See what is in its batch, and whether the optimizer leaves such a step out."
    if found.earlier:
        evidence.append(f"{words.plural(found.earlier, 'value')} before that were NaN or infinite too")
    trace = _paste(report, "trace", "-o", "trace.json", "--steps", _steps_around(found.step))
    return [
        Finding(
            kind="not-finite",
            title=title,
            evidence=tuple(evidence),
            look=f"{look} That step: {trace}",
            rank=found.first_rank,
            section=found.name or "loss",
            since_ns=found.at_ns,
            since_step=found.step,
            until_step=found.last_step if found.finite_after else None,
            ranks=found.ranks,
        )
    ], "a loss was not finite"


def _silent_s(report: Report) -> float:
    """Return for how long the ranks lived after their last step, in seconds; 0 if no step ended."""
    stepped_ns = max((row.stepped_ns for row in report.ranks), default=0)
    return (report.goodput.end_ns - stepped_ns) / 1e9 if stepped_ns else 0.0


def _stopped_after_s(report: Report) -> float:
    return max(STOPPED_AFTER_S, STOPPED_AFTER_STEPS * (report.step_time.p50_s or 0.0))


def _stopped(report: Report) -> _Ruled:
    rows = [row for row in report.ranks if row.stepped_ns]
    if all(row.has_good_end for row in report.ranks) or not rows:
        return [], ("every rank has a good end" if rows else "no step ended")
    stalls = _stalls(report)
    silent_s, after_s = max([_silent_s(report), *(one.lasted_s for one in stalls)]), _stopped_after_s(report)
    if silent_s < after_s and not stalls:
        return [], (
            f"the last step ended {words.seconds(silent_s)} before the last event; it takes {words.seconds(after_s)}"
        )
    usual = report.step_time.p50_s or 0.0
    odd = _odd_stall(stalls) if stalls else _odd_one(report)
    behind = min(rows, key=lambda row: (row.last_step, row.rank != odd, row.stepped_ns))
    evidence = [f"rank {behind.rank} stopped after step {behind.last_step}"]
    if odd == behind.rank:
        evidence[0] += ", and is not where all the others are"
    evidence += _stall_lines(stalls, odd) or [
        f"rank {row.rank} is in {row.name}, for {words.duration(row.seen_ns - row.start_ns)}"
        for row in report.open[:_MOST_LISTED]
    ]
    own = next((one for one in stalls if one.rank == behind.rank), None)
    in_span = own.span if own else next((row.name for row in report.open if row.rank == behind.rank), "")
    title = (
        f"No step has ended for {words.seconds(silent_s)}, since step {max(row.last_step for row in rows)}; "
        f"half of them{report.step_time.whose(report.ranks_total)} took less than {words.seconds(usual)}."
    )
    if own is not None and odd == behind.rank and own.where:
        title = f"{title[:-1]}: rank {odd} is in {own.where}."
    finding = Finding(
        kind="stopped",
        title=title,
        evidence=tuple(evidence),
        look=(
            "The stacks of all threads: " + _paste(report, "tail", "-t", "'*stall*'")
            if stalls
            else f"See what rank {behind.rank} does{f' in {in_span}' if in_span else ''}, {_where(behind)}: "
            f"py-spy dump --pid {behind.pid}"
        ),
        cost_s=silent_s,
        rank=behind.rank,
        section=in_span if odd == behind.rank else "",
        since_step=behind.last_step,
        since_ns=max(row.stepped_ns for row in rows),
    )
    return [finding], f"no step ended for {words.seconds(silent_s)}"


def _stalls(report: Report) -> list[StallRow]:
    """Return the last attempt's stalls that are not over, one for each rank."""
    last = {row.rank: row.attempt for row in report.ranks}
    found = {one.rank: one for one in report.stalls if not one.is_over and last.get(one.rank) == one.attempt}
    return list(found.values())


def _odd_stall(stalls: Sequence[StallRow]) -> int | None:
    """
    Return the rank for which the others wait: the first of those that do not wait themselves.

    If all ranks wait or none does, it is the only rank at another place in the code; None if there is no such rank.
    """
    working = [one for one in stalls if not one.waits]
    if 0 < len(working) < len(stalls):
        return min(working, key=lambda one: (one.step, one.rank)).rank
    counts = Counter(one.where for one in stalls)
    alone = [one.rank for one in stalls if counts[one.where] == 1]
    return alone[0] if len(counts) == 2 and len(alone) == 1 else None  # noqa: PLR2004


def _stall_lines(stalls: Sequence[StallRow], odd: int | None) -> list[str]:
    """Return a line for each place in the code with the ranks that are there; the line of the *odd* rank is first."""
    places: dict[str, list[int]] = {}
    for one in sorted(stalls, key=lambda one: (one.rank != odd, one.rank)):
        within = f"in {one.span}, " if one.span else ""
        last = f"; the last collective: {one.collective}" if one.collective else ""
        places.setdefault(f"{within}{one.where or 'no stack is known'}{last}", []).append(one.rank)
    return [
        f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} {'are' if len(ranks) > 1 else 'is'} "
        f"{place if place.startswith('in ') else f'in {place}'}"
        for place, ranks in list(places.items())[:_MOST_LISTED]
    ]


def _stalled(report: Report) -> _Ruled:
    """Find stalls after which training continued; the rule pauses finds those in a pause of single ranks."""
    by_step: dict[tuple[int, int], list[StallRow]] = {}
    in_pause = _stalls_in_pause(report) if _pauses(report)[0] else []
    for one in report.stalls:
        if one.is_over and one not in in_pause:
            by_step.setdefault((one.attempt, one.step), []).append(one)
    found = []
    for (_, step), stalls in by_step.items():
        cost = max(one.lasted_s - one.usual_s for one in stalls)
        odd = _odd_stall(stalls)
        one = next((one for one in stalls if one.rank == odd), stalls[0])
        who = f": rank {odd} was in {one.where}" if odd is not None and one.where else ""
        found.append(
            Finding(
                kind="stall",
                title=f"Training stood still after step {step}, for {of_all(report, cost)}{who}.",
                evidence=tuple(_stall_lines(stalls, odd)),
                look="The stacks of all threads: " + _paste(report, "tail", "-t", "'*stall*'"),
                cost_s=cost,
                rank=odd,
                section=one.span if odd is not None else "",
                since_ns=one.at_ns,
                since_step=step,
                until_step=step + 1,
            )
        )
    found.sort(key=lambda one: -one.cost_s)
    because = f"{words.plural(len(found), 'stall')} ended" if found else "no stall was recorded that a step ended"
    if in_pause:
        because = f"{words.plural(len(found), 'stall')} ended outside of a pause: see the rule pauses for others"
    return found[:_MOST_HOSTS], because


def _stalls_in_pause(report: Report) -> list[StallRow]:
    """Return the stalls of the last attempt that a pause of single ranks explains by half at least."""
    pause = report.pauses
    if pause is None or pause.is_every_rank:
        return []
    last = {row.rank: row.attempt for row in report.ranks}
    return [
        one
        for one in report.stalls
        if one.is_over
        and one.attempt == last.get(one.rank)
        and one.step + 1 in pause.steps
        and one.lasted_s <= 2 * pause.length_ns / 1e9
    ]


def _odd_one(report: Report) -> int | None:
    """Return the only rank in another span than all others, which share one; None if there is no such rank."""
    counts = Counter(row.name for row in report.open)
    alone = [row.rank for row in report.open if counts[row.name] == 1]
    return alone[0] if len(counts) == 2 and len(alone) == 1 else None  # noqa: PLR2004


# --- where the time went -------------------------------------------------------------------------------------------


def _restarts(report: Report) -> _Ruled:
    later = report.attempts[1:]
    if not later:
        return [], "there was one attempt"
    wasted, recovery, restore = (bucket(report, name) for name in (WASTED, RECOVERY, RESTORE))
    again = sum(bar.buckets_s.get(name, 0.0) for bar in later for name in (*STARTING, BEFORE_STEPS))
    cost = wasted + recovery + restore + again
    if not _is_worth(report, cost, RESTARTS_FROM):
        return [], _too_little(report, "restarts cost", cost, RESTARTS_FROM)
    first = report.attempts[0]
    evidence = [
        (
            f"{words.seconds(wasted)} of steps done again, {words.seconds(recovery)} until the job was back, "
            f"{words.seconds(restore)} loading checkpoints, {words.seconds(again)} starting up again"
        ),
        *(line for bar in report.attempts[:-1] for line in _out(bar, report.errors)),
    ]
    if wasted >= max(recovery, restore, again):
        look = "Save checkpoints more often: the largest part is work done again since the last one."
    elif recovery >= restore + again:
        look = "See what the launcher waits for before it starts the job again."
    else:
        look = "See what takes so long from the start to the first step, and to load a checkpoint."
    out = first.first_out
    finding = Finding(
        kind="restarts",
        title=f"{words.plural(len(later), 'restart')} cost {of_all(report, cost)}.",
        evidence=tuple(evidence[:8]),
        look=f"{look} Each attempt and its end: {_paste(report, 'runs')}",
        cost_s=cost,
        rank=out.rank if out else None,
        since_ns=out.last_ns if out else later[0].start_ns,
        since_step=out.last_step if out else None,
    )
    return [finding], f"restarts cost {of_all(report, cost)}"


def _out(bar: AttemptBar, errors: Sequence[ErrorRow]) -> list[str]:
    one = bar.first_out
    if one is None:
        return []
    line = (
        f"attempt {bar.number}: rank {one.rank} on {one.host or 'an unknown host'} was the first to fall silent, "
        f"at {words.clock(one.last_ns)} {words.step(one.last_step)}"
    )
    raised = [error for error in errors if error.is_fatal and error.attempt == one.attempt]
    return [line, *(f"attempt {bar.number}: rank {error.rank}: {_one_line(error.error)}" for error in raised[:1])]


def _checkpoints(report: Report) -> _Ruled:
    cost = _stood_still_s(report, SAVE)
    if not _is_worth(report, cost, CHECKPOINTS_FROM):
        return [], _too_little(report, "saves took", cost, CHECKPOINTS_FROM)
    saves = _standstill(report, "checkpoint")
    finding = Finding(
        kind="checkpoints",
        title=f"Training stood still for checkpoints{_of_rank(saves)}: {of_all(report, cost)}.",
        evidence=_standstill_lines(saves, "save"),
        look=_before_it(saves)
        + "Save asynchronously, to a faster place, or less often than every few minutes. Saves on a time line: "
        + _paste(report, "trace", "-o", "trace.json"),
        cost_s=cost,
        rank=saves.blamed if saves is not None else None,
        since_ns=saves.since_ns if saves is not None else None,
    )
    return [finding], f"saves took {of_all(report, cost)}"


def _standstill(report: Report, kind: str) -> Standstill | None:
    return next((one for one in report.standstills if one.kind == kind), None)


def _of_rank(one: Standstill | None) -> str:
    if one is None or not one.is_uneven:
        return ""
    return f" of rank {one.rank}" if one.waited_for is None else f" that waited for rank {one.waited_for}"


def _before_it(one: Standstill | None) -> str:
    """Return the advice to look at the rank for which the others waited, if there is one."""
    if one is None or not one.is_uneven or one.waited_for is None:
        return ""
    return f"See first what keeps rank {one.waited_for} from beginning with the others. "


def _standstill_lines(one: Standstill | None, what: str) -> tuple[str, ...]:
    """Return lines about the number and length of standstills and, if uneven, about the rank's and the least time."""
    if one is None:
        return ()
    at = f" at step {one.longest_step}" if one.longest_step >= 0 else ""
    mean_s = one.took_s / one.count
    line = f"{words.plural(one.count, what)} of {words.seconds(mean_s)} on average, the longest "
    line += f"{words.seconds(one.longest_s)}{at}"
    if not one.is_uneven:
        return (line,)
    least = f"another rank {words.seconds(one.least_s)}" if one.least_s else "another rank made none"
    if one.waited_for is not None:
        least = f"rank {one.waited_for}, which began later and ended with it, {words.seconds(one.least_s)}"
    return line, f"rank {one.rank} took {words.seconds(one.took_s)} for all of them, {least}"


_UNEVEN_SCORE: Final = 0.5
_LONGEST_SCORE: Final = 0.9


def _input(report: Report) -> _Ruled:
    """Find a loader that is slow on all ranks; the rule stragglers finds one that is slow on some."""
    loading = bucket(report, LOADING)
    cost = max(0.0, loading - report.first_batch_s)  # the first batch belongs to starting up
    parts = [part for part in report.parts if part.kind == "input"]
    if not loading:
        cost = _unnamed_input_s(report)
    # The bucket is of the rank that got least done. The excess of a late rank's wait over its peers is another finding.
    late_ones = [one for one in report.late if kind_of(one.what, set()) == "input"]
    late_s = min(cost, sum(one.excess_s for one in late_ones))
    cost -= late_s
    pausing_s = sum(one.cost_s for one in _pauses(report)[0] if one.section in {part.name for part in parts})
    cost -= min(cost, pausing_s)
    if not _is_worth(report, cost, INPUT_FROM):
        because = _too_little(report, "waiting for data took", cost, INPUT_FROM)
        if late_s:
            because += f"; {words.seconds(late_s)} more on single ranks: see the rule stragglers"
        if pausing_s:
            because += f"; {words.seconds(pausing_s)} more in pauses: see the rule pauses"
        return [], because
    name = parts[0].name if parts else "data_loading"
    evidence = [f"{part.name} takes {words.duration(part.mean_ns)} of a step (mean of the ranks)" for part in parts[:3]]
    look = "Give the loader more workers, prefetch, or see how fast the storage is; compute waits for neither."
    has_it_as = "unaccounted" if _between_steps_s(report) > cost / 2 else "productive"
    if not loading and (has_it_as == "unaccounted" or report.goodput.productive_s >= cost):
        evidence.append(
            f"goodput has it as {has_it_as}: it knows spans of the name {span_names.DATA_LOADING}, and any with "
            f'badput_type="{LOADING}"'
        )
    who, rank, uneven = "Training", None, _uneven(report)
    is_found = uneven is not None and uneven[1] in {one.rank for one in late_ones}  # all ranks wait for the rest
    if uneven is not None and not is_found and uneven[0] in {part.name for part in parts}:
        rank = uneven[1]
        who = f"Rank {rank}"
        evidence.append(f"rank {rank} takes {uneven[2]:.2g} times as long over {uneven[0]} as the fastest rank")
        look = f"Look at rank {rank} first: its shard of the data, what its loader does to a batch, its storage."
    elif not is_found and (longest := _longest_in(report, name)) is not None:
        evidence.append(
            f"rank {longest[0]} waits longest, {longest[1]:.2g} times as long as the fastest: it loads slower, or is "
            "only the last where workers load beside the steps"
        )
    late = report.slowdown if report.slowdown is not None and report.slowdown.kind == "input" else None
    if late is not None:
        evidence.append(
            f"since step {late.step}: {words.duration(late.part_before_ns)} before, "
            f"{words.duration(late.part_after_ns)} from then on"
        )
    finding = Finding(
        kind="input-bound",
        title=f"{who} waits for its input: {of_all(report, cost)}, went into {name}.",
        evidence=tuple(evidence),
        rank=rank,
        look=f"{look} Its part of the step over time: {_paste(report, 'report', '--html', 'report.html')}",
        cost_s=cost,
        section=name,
        since_ns=late.at_ns if late else None,
        since_step=late.step if late else None,
    )
    return [finding], f"waiting for data took {of_all(report, cost)}"


def _unnamed_input_s(report: Report) -> float:
    """Return the time, in seconds, of the parts whose names mean data loading; used if goodput has no bucket for it."""
    return sum(part.mean_ns for part in report.parts if part.kind == "input") / 1e9 * _steps_of_rank(report)


def _steps_of_rank(report: Report) -> float:
    """Return the number of steps of a rank, as the mean over the ranks."""
    return sum(one.count for _, one in report.steps) / max(1, report.ranks_total - len(report.missing_ranks))


def _stepped_s(report: Report) -> float:
    """Return the time of all steps of a rank, from step to step, as the mean over the ranks in seconds."""
    ranks = max(1, report.ranks_total - len(report.missing_ranks))
    return sum(one.total for _, one in report.steps) / ranks / 1e9


def _between_steps_s(report: Report) -> float:
    """Return the part of the time from step to step that is in no bucket, in seconds."""
    return min(bucket(report, "OTHER"), max(0.0, _stepped_s(report) - report.goodput.productive_s))


def _uneven(report: Report) -> tuple[str, int, float] | None:
    """
    Return the most uneven part of a step, its slowest rank, and this rank's time as a multiple of the fastest rank's.

    None if no rank takes more than twice as long as its peers usually do. The result may be noise, so it is used only
    for advice.
    """
    if report.heatmap is None:
        return None
    means_ns = {part.name: part.mean_ns for part in report.parts}
    found = [
        ((1 - score) * means_ns.get(name, 0.0), name, rank, 1 / score)
        for name, column in zip(report.heatmap.names, report.heatmap.scores, strict=True)
        for usual in [statistics.median_high(score or 0.0 for score in column)]
        for rank, score in zip(report.heatmap.ranks, column, strict=True)
        if score is not None and 0 < score < _UNEVEN_SCORE * usual
    ]
    return max(found)[1:] if found else None


def _longest_in(report: Report, part: str) -> tuple[int, float] | None:
    """Return the rank that is longest in *part*, and the multiple of the fastest rank's time; None if all are alike."""
    if report.heatmap is None or part not in report.heatmap.names:
        return None
    column = report.heatmap.scores[report.heatmap.names.index(part)]
    score, rank = min((score or 1.0, rank) for rank, score in zip(report.heatmap.ranks, column, strict=True))
    return (rank, 1 / score) if score <= _LONGEST_SCORE else None


def _fastest_in(heatmap: Heatmap, part: str) -> int:
    """Return the rank that takes least time for *part*, a section of the *heatmap*."""
    column = heatmap.scores[heatmap.names.index(part)]
    return max(heatmap.ranks, key=dict(zip(heatmap.ranks, (score or 0.0 for score in column), strict=True)).__getitem__)


def worthy(report: Report) -> list[LateRank]:
    """Return the late ranks that cost enough for a finding, except a rank whose pauses explain half of the cost."""
    return [
        one
        for one in report.late
        if _is_worth(report, one.lost_s, STRAGGLER_FROM)
        and (report.pauses is None or report.pauses.ranks != (one.rank,) or report.pauses.cost_s < one.lost_s / 2)
    ]


def waited_words(report: Report) -> str:
    """
    Return a sentence about the productive time that was spent waiting for the most costly late rank.

    Empty if this time was short, or if nothing shows that the others waited.
    """
    late = worthy(report)
    productive_s = {one.rank: one.productive_s for one in report.goodput.ranks}
    if not late or not late[0].waited_in or late[0].rank not in productive_s or len(productive_s) < 2:  # noqa: PLR2004
        return ""
    one = late[0]
    own_s = productive_s.pop(one.rank)
    # The job's account is that of the late rank. What it lost of its steps in other buckets, such as data loading, is
    # not productive.
    waited_s = one.lost_s - max(0.0, statistics.median(productive_s.values()) - own_s)
    if waited_s < LEAST_COST_S:
        return ""
    return f"{words.seconds(waited_s)} of productive time were spent waiting for rank {one.rank}."


def _stragglers(report: Report) -> _Ruled:
    """Find the late ranks; those of one host and part share a finding, because they usually have one cause."""
    late = worthy(report)
    if not late:
        if report.pauses is not None and report.late and _is_worth(report, report.late[0].lost_s, STRAGGLER_FROM):
            return [], "the late rank pauses: see the rule pauses"
        if report.late:
            return [], _too_little(report, "late ranks cost", report.late[0].lost_s, STRAGGLER_FROM)
        what_if = report.what_if
        because = what_if.why_not or (
            f"{words.plural(what_if.ranks, 'rank')} were compared over {words.plural(what_if.steps, 'step')} of "
            f"{words.duration(what_if.step_ns)}: none came late by more than noise"
        )
        return [], because
    found: list[Finding] = []
    named: set[tuple[str, int, str]] = set()
    for one in late:
        place = (one.node, -1, one.what) if one.node and report.hosts > 1 else ("", one.rank, "")
        if place not in named and len(named) < _MOST_HOSTS:
            named.add(place)
            found.append(_straggler(report, one, late))
    least_sure = max(late, key=lambda one: 1.0 if one.chance is None else one.chance)
    return found, f"{words.plural(len(late), 'rank')} came late; {chance_words(least_sure)}"


def chance_words(one: LateRank) -> str:
    """Return words for how rarely noise alone makes a rank look so late, or for the evidence if that is not known."""
    chance = one.chance
    if chance is None and one.steps:
        return "for long by more than half a step, which no other rank was"
    if chance is None:
        return "this rests on the scores of its windows alone: too few to rule out noise"
    # The model of the noise is not valid for rarer events.
    return f"noise does that in fewer than one of {10 ** min(6, math.floor(-math.log10(max(chance, 1e-14)))):,} jobs"


def _straggler(report: Report, one: LateRank, late: Sequence[LateRank]) -> Finding:
    same = [one.rank]
    if one.node and report.hosts > 1:  # if there is one host, all ranks share it
        same = sorted({other.rank for other in late if (other.node, other.what) == (one.node, one.what)})
    is_input = kind_of(one.what, set()) == "input"
    many = len(same) > 1
    who = f"Ranks {_ranges(same)} on {one.node}" if many else f"Rank {one.rank}"
    if not many and one.node and report.hosts > 1:
        who += f" on {one.node}"
    times = (
        f"{words.duration(one.own_ns)} a step, the others {words.duration(one.peers_ns)}"
        if one.own_ns
        else f"{words.duration(one.lateness_ns)} a step"
    )
    if is_input:
        does = f"wait{'' if many else 's'} for {'their' if many else 'its'} data"
    elif one.where == OUTSIDE:
        does = f"{'are' if many else 'is'} slow {OUTSIDE}"
    elif one.what == one.where:
        does = f"{'are' if many else 'is'} slow in {one.what}"
    else:
        does = f"{'are' if many else 'is'} slow outside measured parts, {one.where}"
    over = f"on average of {one.steps:,} steps," if one.steps else "in steps"
    later = f"{words.duration(one.lateness_ns)} later than its peers"
    arrived = f"arrived {later}, {over} {one.since_step} to {one.until_step}"
    chance = chance_words(one)
    if one.by_part:
        evidence = [f"rank {one.rank} takes longer there: {chance}", f"it {arrived}; its other parts are noisy"]
    else:
        evidence = [f"rank {one.rank} {arrived}; {chance}"]
    if one.began:
        evidence.append(f"noise leaves open when it began: in one of the steps {one.began[0]} to {one.began[1]}")
    if one.waited_in:
        evidence.append(f"the others waited for it {one.waited_in}")
    if one.also_in:
        evidence.append(f"it was slower in {', '.join(one.also_in[:_MOST_LISTED])} too")
    others = [other for other in late if other.rank not in same]
    if others:
        is_together = any(
            max(one.since_step, other.since_step) <= min(one.until_step, other.until_step) for other in others
        )
        overlap = ", in the same steps: their costs overlap" if is_together else ""
        evidence.append(f"late as well: {_ranks([other.rank for other in others])}{overlap}")
    if many:
        look = f"Look at host {one.node}: several of its ranks are slow."
    elif is_input:
        look = f"Look at rank {one.rank}'s shard of the data, its workers and its storage."
    elif one.also_in or one.what == "gpu":
        look = f"Look at rank {one.rank}'s device and host {one.node}: clocks, temperature, other processes."
    else:
        look = f"Look at what rank {one.rank} does there that others do not."
    peers = next((row.rank for row in sorted(report.ranks, key=lambda row: row.rank) if row.rank not in same), one.rank)
    ranks = ",".join(map(str, sorted({one.rank, peers})))
    steps = _steps_around(one.since_step + 2)
    return Finding(
        kind="input-bound" if is_input else "straggler",
        title=f"{who} {does} {since_words(one)}: {times}. The job lost {of_all(report, one.lost_s)}.",
        evidence=tuple(evidence),
        look=f"{look} {_paste(report, 'trace', '-o', 'trace.json', '--ranks', ranks, '--steps', steps)}",
        cost_s=one.lost_s,
        rank=same[0] if many else one.rank,
        section=one.what,
        since_ns=one.since_ns,
        since_step=one.since_step,
        until_step=one.until_step if one.is_over else None,
        ranks=tuple(same),
    )


def _pauses(report: Report) -> _Ruled:
    one = report.pauses
    if one is None:
        return [], "no step is longer at regular intervals, or by 1 s and ten usual steps"
    if any(late.rank in one.ranks for late in worthy(report)):
        return [], "the rank that pauses is late: see the rule stragglers"
    if not _is_worth(report, one.cost_s, PAUSES_FROM):
        return [], _too_little(report, "pauses cost", one.cost_s, PAUSES_FROM)
    is_one = len(one.ranks) == 1
    who = "Every rank" if one.is_every_rank else f"{'Rank' if is_one else 'Ranks'} {_ranges(one.ranks)}"
    look = (
        "Python's garbage collector (gc.freeze(), or gc.collect() at the same step on all ranks), logging, a metric "
        "that is fetched from the device"
        if one.every_steps
        else "something saved or evaluated without a span, a step compiled anew, the storage, another process"
    )
    if one.every_steps and is_gap(one.where):
        look = f"something saved or evaluated without a span, {look}"
    if kind_of(one.where, set()) == "input":
        look = "a file or a shard that is opened, a shuffle, the storage"
        if one.every_steps:
            look += f"; {one.every_steps} workers of a loader that are all too slow give their batches in bunches"
    many = len(one.steps)
    if one.every_steps is None:
        when = "paused once" if many == 1 else f"paused {many} times"
        steps = f"in {'step' if many == 1 else 'steps'} {words.ranges(one.steps, most=_MOST_RANGES)}"
    else:
        when = f"{'pauses' if is_one or one.is_every_rank else 'pause'} every {one.every_steps} steps"
        steps = f"{many} pauses, the first in step {one.steps[0]}"
    finding = Finding(
        kind="pauses",
        title=f"{who} {when} for {words.duration(one.length_ns)}, "
        f"{tile_words(one.where) if is_gap(one.where) else f'in {one.where}'}: {of_all(report, one.cost_s)}.",
        evidence=(steps, *_stall_lines(_stalls_in_pause(report), None)),
        look=f"See what comes then: {look}. {'The first' if many > 1 else 'The pause'} in a trace: "
        + _paste(report, "trace", "-o", "trace.json", "--steps", _steps_around(one.steps[0])),
        cost_s=one.cost_s,
        rank=one.ranks[0] if is_one else None,
        section=OUTSIDE if is_gap(one.where) else one.where,
        since_step=one.steps[0],
    )
    return [finding], f"pauses cost {of_all(report, one.cost_s)}"


def _in_turn(report: Report) -> _Ruled:
    turns, cost = report.what_if.in_turn, report.what_if.in_turn_s
    if not turns:
        return [], "no ranks are late in turn"
    if not _is_worth(report, cost, STRAGGLER_FROM):
        return [], _too_little(report, "ranks that are late in turn cost", cost, STRAGGLER_FROM)
    most = sorted(turns.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LISTED]
    finding = Finding(
        kind="waiting",
        title=f"Ranks {_ranges(turns)} are late in turn: {of_all(report, cost)}, went into waiting for them.",
        evidence=tuple(
            f"rank {rank} in {words.percent(share, 0)} of the steps, for long at a time" for rank, share in most
        ),
        look="See what moves from rank to rank: clocks and temperature, other processes, the lengths of their batches. "
        + _paste(report, "trace", "-o", "trace.json"),
        cost_s=cost,
        ranks=tuple(sorted(turns)),
    )
    return [finding], f"late in turn are {_ranks(turns)}"


def _waiting(report: Report) -> _Ruled:
    share = report.waited_share
    if share is None:
        return [], "nothing says where ranks wait for each other"
    # If no span measures the waiting, only a part of the waiting is known.
    threshold = WAITING_FROM if any(part.kind == "waiting" for part in report.parts) else WAITING_OUTSIDE_FROM
    if share < threshold:
        because = f"{words.percent(share)} of a step; from {words.percent(threshold, 0)} on it would be said"
        return [], because
    if worthy(report):
        return [], "a late rank explains it: see the rule stragglers"
    if report.slowdown is not None and report.slowdown.kind == "waiting" and _slowdown(report)[0]:
        return [], "it began in the middle of the job: see the rule slowdown"
    cost = share * report.goodput.productive_s
    if not _is_worth(report, cost, STRAGGLER_FROM):
        return [], _too_little(report, "waiting took", cost, STRAGGLER_FROM)
    finding = Finding(
        kind="waiting",
        title=f"Ranks wait for each other: {words.percent(share)} of a step, {of_all(report, cost)}, "
        f"and {_none_is_late(report)}.",
        evidence=(f"waited in {listed(report, 'waiting') or _waits_in(report) or 'collectives'}",),
        look="See what the network does, how much is exchanged in each step, and whether it overlaps with compute. "
        + _paste(report, "trace", "-o", "trace.json", "--steps", "10-20"),
        cost_s=cost,
        section=next((part.name for part in report.parts if part.kind == "waiting"), ""),
    )
    return [finding], f"{words.percent(share)} of a step"


def _none_is_late(report: Report) -> str:
    """Return words that explain why no rank is named as late."""
    if report.missing_ranks:
        return f"nothing is known of {_ranks(report.missing_ranks)}"
    return (
        f"they could not be compared: {report.what_if.why_not}"
        if report.what_if.why_not
        else ("none of them is late beyond noise")
    )


def _waits_in(report: Report) -> str:
    return ", ".join(map(tile_words, report.what_if.waits_in))


_GREW: Final = {
    "compute": (
        "compute-bound",
        "All ranks compute slower, by design as with longer sequences, or for their clocks, temperature or neighbours.",
    ),
    "input": ("input-bound", "Loading became slower: see the storage, and what the loader read then."),
    "waiting": ("waiting", "Ranks wait longer for each other: see the network."),
}


def _slowdown(report: Report) -> _Ruled:
    one = report.slowdown
    if one is None:
        return [], "steps did not become longer for good, or are too few to tell"
    if not _is_worth(report, one.cost_s, SLOWDOWN_FROM):
        return [], _too_little(report, "longer steps cost", one.cost_s, SLOWDOWN_FROM)
    if one.kind == "input" and any(finding.kind == "input-bound" for finding in _input(report)[0]):
        return [], "it is the input: see the rule input-bound"
    near = max(_NEAR_STEPS, one.step // 5)
    explained = sum(
        late.lost_s
        for late in worthy(report)
        if abs(late.since_step - one.step) <= near or late.lost_s >= one.cost_s / 2
    )
    if explained >= one.cost_s / 3:
        return [], "a rank became late then: see the rule stragglers"
    grew = one.after_ns / one.before_ns - 1
    evidence = [f"{words.duration(one.before_ns)} a step before, {words.duration(one.after_ns)} since"]
    kind, look = "slowdown", "See what else changed then: the data, the length of the sequences, other jobs."
    if one.part:
        evidence.append(
            f"{one.part} grew most, from {words.duration(one.part_before_ns)} to {words.duration(one.part_after_ns)}"
        )
        if one.part == _may_wait_in(report):
            look = f"{one.part} may hold the wait for other ranks, and which grew is not known: see clocks and network."
        else:
            kind, look = _GREW.get(one.kind, (kind, look))
    uneven = _uneven(report)
    if kind == "slowdown" and uneven is not None and uneven[0] not in report.what_if.waits_in:
        part, rank, factor = uneven
        evidence.append(f"rank {rank} takes {factor:.2g} times as long over {part} as the fastest rank")
        look = f"Look at {part} of rank {rank} first. {look}"
    if kind == "waiting" and uneven is not None:
        part, rank, factor = uneven
        evidence.append(f"rank {rank} takes {factor:.2g} times as long over {part} as the fastest rank")
        if report.heatmap is not None and kind_of(part, set()) == "waiting":  # a rank that waits long is not late
            look = (
                f"Rank {_fastest_in(report.heatmap, part)} waits least in {part}: see whether the others wait for it."
            )
        else:
            look = f"Ranks wait longer for each other: look at {part} of rank {rank} first, then at the network."
    finding = Finding(
        kind=kind,
        title=f"Steps take {words.percent(grew)} longer since step {one.step}"
        f"{f', most of it in {one.part}' if one.part else ''}: {of_all(report, one.cost_s)}.",
        evidence=tuple(evidence),
        look=f"{look} {_paste(report, 'trace', '-o', 'trace.json', '--steps', _steps_around(one.step))}",
        cost_s=one.cost_s,
        section=one.part,
        since_ns=one.at_ns,
        since_step=one.step,
    )
    return [finding], f"steps took {words.percent(grew)} longer"


def _memory(report: Report) -> _Ruled:
    if not report.growth:
        return [], "no counter of bytes rose until the end"
    one = report.growth[0]
    finding = Finding(
        kind="memory-growth",
        title=f"Memory grows without end: {one.name} of rank {one.rank} rose from {words.amount(one.first, 'bytes')} "
        f"to {words.amount(one.last, 'bytes')}.",
        evidence=(
            (
                f"by {words.amount(one.per_hour, 'bytes')} an hour, since {words.clock(one.since_ns)}, "
                f"and still at the end; on {words.plural(one.ranks, 'rank')}"
            ),
        ),
        look="Look for what is kept from step to step: losses with their graph, lists, caches without a bound. Its "
        "curve: " + _paste(report, "report", "--html", "report.html"),
        rank=one.rank,
        section=one.name,
        since_ns=one.since_ns,
    )
    return [finding], f"{one.name} rose until the end"


def _regression(report: Report) -> _Ruled:
    found = report.baseline
    if found is None or found.change is None:
        return [], ("no baseline was given" if found is None else "too few steps")
    if not found.is_shown or found.change < REGRESSION_FROM or found.low is None or found.high is None:
        bounds = f"{words.change(found.low)} to {words.change(found.high)}"
        return [], f"steps differ by {words.change(found.change)}, {bounds}"
    cost = report.goodput.productive_s * found.change / (1 + found.change)
    finding = Finding(
        kind="regression",
        title=f"Steps take {words.percent(found.change)} longer than the baseline's: {of_all(report, cost)}.",
        evidence=(
            (
                f"{words.duration(found.before)} in the baseline, {words.duration(found.after)} here; "
                f"the difference is between {words.change(found.low)} and {words.change(found.high)}"
            ),
        ),
        look="Which buckets and which parts of the step changed: trackside compare BASELINE "
        + " ".join(map(shlex.quote, report.paths)),
        cost_s=cost,
    )
    return [finding], f"steps take {words.change(found.change)}"


def _evaluation(report: Report) -> _Ruled:
    cost = _stood_still_s(report, VALIDATION)
    if not _is_worth(report, cost, EVALUATION_FROM):
        return [], _too_little(report, "evaluation took", cost, EVALUATION_FROM)
    evaluations = _standstill(report, "validation")
    finding = Finding(
        kind="evaluation",
        title=f"Evaluation{_of_rank(evaluations)} took {of_all(report, cost)}.",
        evidence=_standstill_lines(evaluations, "evaluation"),
        look=_before_it(evaluations) + "Evaluate less often, or on less.",
        cost_s=cost,
        rank=evaluations.blamed if evaluations is not None else None,
    )
    return [finding], f"evaluation took {of_all(report, cost)}"


def _custom(report: Report) -> _Ruled:
    customs = report.goodput.badput_s.get("CUSTOM_BADPUT_EVENTS", {})
    found = [
        Finding(
            kind="custom",
            title=f"{name} took {of_all(report, cost)}.",
            evidence=("spans that are marked so by badput_type",),
            look="See whether it can run beside training.",
            cost_s=cost,
            section=name,
        )
        for name, cost in sorted(customs.items(), key=lambda item: -item[1])[:2]
        if _is_worth(report, cost, CUSTOM_FROM)
    ]
    because = "spans with a badput_type took that long" if found else "no bucket of your own took a tenth of the time"
    return found, because


def _startup(report: Report) -> _Ruled:
    cost = _startup_s(report)
    if cost < LEAST_ONCE_S or not _is_worth(report, cost, STARTUP_FROM):
        because = _too_little(report, "starting up took", cost, STARTUP_FROM)
        return [], f"{because}, of at least {LEAST_ONCE_S:g} s"
    longest = sorted(((bucket(report, name), name) for name in STARTING), reverse=True)
    finding = Finding(
        kind="startup",
        title=f"Starting up took {of_all(report, cost)}, before the first step had ended.",
        evidence=(
            *(f"{shown(name).name}: {words.seconds(length)}" for length, name in longest if length >= LEAST_COST_S),
            *(
                [f"the first batch: {words.seconds(report.first_batch_s)}"]
                if report.first_batch_s >= LEAST_COST_S
                else []
            ),
            f"in no span: {words.seconds(report.startup_s)} from the start to the first step",
        ),
        look="Put spans around what happens there (model_initialization, data_loader_initialization, …); cache what is "
        "compiled or downloaded. On a time line: " + _paste(report, "trace", "-o", "trace.json"),
        cost_s=cost,
        section="startup",
    )
    return [finding], f"starting up took {of_all(report, cost)}"


def _startup_s(report: Report) -> float:
    """Return the seconds to the first step of the first attempt; the rule restarts has those of later attempts."""
    first = report.attempts[0].buckets_s if report.attempts else {}
    return sum(first.get(name, 0.0) for name in STARTING) + report.first_batch_s + report.startup_s


def _shutdown(report: Report) -> _Ruled:
    cost = report.shutdown_s
    if cost < LEAST_ONCE_S or not _is_worth(report, cost, STARTUP_FROM):
        because = _too_little(report, "after the last step came", cost, STARTUP_FROM)
        return [], f"{because}, of at least {LEAST_ONCE_S:g} s"
    finding = Finding(
        kind="shutdown",
        title=f"The job went on for {of_all(report, cost)}, after its last step.",
        evidence=("in no span: from the end of the last step to the end of telemetry, on every rank",),
        look="Put spans around what happens there (a last evaluation, an export, an upload), or see what it waits for. "
        "On a time line: " + _paste(report, "trace", "-o", "trace.json"),
        cost_s=cost,
        section="shutdown",
    )
    return [finding], f"after the last step came {of_all(report, cost)}"


def _unaccounted(report: Report) -> _Ruled:
    if not report.steps and report.parts:
        return [], "no iteration was recorded, and the sections of the steps say what took the time"
    elsewhere = sum(one.cost_s for one in _pauses(report)[0])
    if not all(row.has_good_end for row in report.ranks):  # time after a failure is a cost of the failure
        elsewhere += _silent_s(report)
    # The cause of this time is known, whether or not it is worth a finding.
    elsewhere += sum(bar.buckets_s.get(BEFORE_STEPS, 0.0) for bar in report.attempts) + report.shutdown_s
    elsewhere += sum(_stood_still_s(report, name) - bucket(report, name) for name in (SAVE, VALIDATION))
    elsewhere += sum(report.losses.limited_s.values())
    # Late ranks lost this time between their steps.
    elsewhere += sum(one.lost_s for one in worthy(report) if one.what == OUTSIDE)
    if not bucket(report, LOADING):
        elsewhere += min(_unnamed_input_s(report), _between_steps_s(report))
    cost = max(0.0, bucket(report, "OTHER") - elsewhere)  # the known costs may overlap
    if cost < LEAST_UNACCOUNTED_S or not _is_worth(report, cost, UNACCOUNTED_FROM):
        because = _too_little(report, "in no bucket are", cost, UNACCOUNTED_FROM)
        return [], f"{because}, of at least {LEAST_UNACCOUNTED_S:g} s"
    finding = Finding(
        kind="unaccounted",
        title=f"Nothing says what {of_all(report, cost)}, was spent on.",
        evidence=("time outside of steps and of spans with a known name",),
        look="Put spans around what happens between the steps, with badput_type if it should be a bucket."
        if report.steps
        else _NO_STEPS,
        cost_s=cost,
    )
    return [finding], f"in no bucket are {of_all(report, cost)}"


RULES: Final[Mapping[str, Callable[[Report], _Ruled]]] = {
    "raised": _raised,
    "died": _died,
    "exit": _exit,
    "missing-rank": _missing,
    "not-finite": _not_finite,
    "stopped": _stopped,
    "stall": _stalled,
    "restarts": _restarts,
    "checkpoints": _checkpoints,
    "input-bound": _input,
    "stragglers": _stragglers,
    "pauses": _pauses,
    "in-turn": _in_turn,
    "waiting": _waiting,
    "slowdown": _slowdown,
    "memory-growth": _memory,
    "regression": _regression,
    "evaluation": _evaluation,
    "custom": _custom,
    "startup": _startup,
    "shutdown": _shutdown,
    "unaccounted": _unaccounted,
}


def explained(rulings: Iterable[Ruling]) -> list[str]:
    """Return a line for each rule: whether it reported findings, the tags of these, and the reason."""
    width = max((len(ruling.rule) for ruling in rulings), default=0)
    lines = []
    for ruling in rulings:
        tags = "".join(f"[{kind}] " for kind in dict.fromkeys(finding.kind for finding in ruling.findings))
        lines.append(f"{ruling.rule:<{width}}  {'found  ' if tags else 'nothing'}  {tags}{ruling.because}")
    return lines

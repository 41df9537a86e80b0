"""The rules that look at buckets: where a session's time went that was no step that counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trackside.views import _words as words
from trackside.views._finding import Finding
from trackside.views._report import AttemptBar, Report

RESTARTS_FROM: Final = 0.02
CHECKPOINTS_FROM: Final = 0.05
INPUT_FROM: Final = 0.10
EVALUATION_FROM: Final = 0.20
CUSTOM_FROM: Final = 0.10
UNACCOUNTED_FROM: Final = 0.30
_LEAST_S: Final = 0.2
"""What cost less is not worth a sentence."""
RESTORE: Final = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
SAVE: Final = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
WASTED: Final = "WASTED_PROGRESS_FROM_DISRUPTION"
RECOVERY: Final = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
LOADING: Final = "DATA_LOADING_SYNC"
STARTING: Final = ("ACCELERATOR_INITIALIZATION", "TRAINING_PREP", "PROGRAM_STARTUP")


def listed(report: Report, kind: str) -> str:
    """Return the largest parts of a step of one *kind*, with their shares."""
    parts = [part for part in report.parts if part.kind == kind]
    return ", ".join(f"{part.name} {words.percent(part.share, 0)}" for part in parts[:3])


def is_worth(report: Report, cost_s: float, threshold: float) -> bool:
    """Return whether a cost is at least the share *threshold* of the session's time."""
    elapsed = report.goodput.elapsed_s
    return cost_s >= _LEAST_S and elapsed > 0 and cost_s / elapsed >= threshold


def of_all(report: Report, cost_s: float) -> str:
    """Return a cost, and its share of the session's time."""
    return f"{words.seconds(cost_s)}, {words.percent(cost_s / report.goodput.elapsed_s)} of the time"


def bucket(report: Report, name: str) -> float:
    """Return the seconds in a bucket."""
    length = report.goodput.badput_s.get(name, 0.0)
    return float(sum(length.values())) if isinstance(length, dict) else float(length)


def restarts(report: Report) -> Iterator[Finding]:
    """Tell what restarts cost, and which rank fell silent first."""
    later = report.attempts[1:]
    if not later:
        return
    wasted, recovery, restore = (bucket(report, name) for name in (WASTED, RECOVERY, RESTORE))
    again = sum(bar.buckets_s.get(name, 0.0) for bar in later for name in STARTING)
    cost = wasted + recovery + restore + again
    if not is_worth(report, cost, RESTARTS_FROM):
        return
    first = report.attempts[0]
    evidence = [
        (
            f"{words.seconds(wasted)} of steps done again, {words.seconds(recovery)} until the job was back, "
            f"{words.seconds(restore)} loading checkpoints, {words.seconds(again)} starting up again"
        ),
        *(told for bar in report.attempts[:-1] if (told := _out(bar))),
    ]
    rank = first.first_out.rank if first.first_out else None
    if wasted >= max(recovery, restore, again):
        look = "Save checkpoints more often: most of it is work done again since the last one."
    elif recovery >= restore + again:
        look = "See what the launcher waits for before it starts the job again."
    else:
        look = "See what takes so long from the start to the first step, and to load a checkpoint."
    if rank is not None:
        look = f"Read what rank {rank} said last: trackside tail -n 20 on its log, and its own output. {look}"
    yield Finding(
        kind="restarts",
        title=f"{words.plural(len(later), 'restart')} cost {of_all(report, cost)}.",
        evidence=tuple(evidence[:6]),
        look=look,
        cost_s=cost,
        rank=rank,
        since_ns=first.first_out.last_ns if first.first_out else later[0].start_ns,
        since_step=first.first_out.last_step if first.first_out else None,
    )


def _out(bar: AttemptBar) -> str:
    one = bar.first_out
    if one is None:
        return ""
    return (
        f"attempt {bar.number}: rank {one.rank} on {one.host or 'an unknown host'} was the first to fall silent, "
        f"at {words.clock(one.last_ns)} after step {one.last_step}"
    )


def checkpoints(report: Report) -> Iterator[Finding]:
    """Tell how long training stood still for saves."""
    cost = bucket(report, SAVE)
    if not is_worth(report, cost, CHECKPOINTS_FROM):
        return
    saves = [mark for mark in report.marks if mark.kind == "checkpoint"]
    evidence: tuple[str, ...] = ()
    if saves:
        mean = sum(mark.duration_ns for mark in saves) / len(saves)
        longest = max(saves, key=lambda mark: mark.duration_ns)
        evidence = (
            (
                f"{words.plural(len(saves), 'save')} of {words.duration(mean)} on average, "
                f"the longest {words.duration(longest.duration_ns)} at step {longest.step}"
            ),
        )
    yield Finding(
        kind="checkpoints",
        title=f"Training stood still for checkpoints: {of_all(report, cost)}.",
        evidence=evidence,
        look="Save asynchronously, to a faster place, or less often than every few minutes.",
        cost_s=cost,
        since_ns=saves[0].at_ns if saves else None,
    )


def waits_for_input(report: Report) -> Iterator[Finding]:
    """Tell how long training waited for its data."""
    cost = bucket(report, LOADING)
    parts = [part for part in report.parts if part.kind == "input"]
    if not cost and report.parts:
        # Told by sections alone, loading is within the steps and in no bucket of its own.
        steps_s = report.goodput.productive_s
        cost = sum(part.share for part in parts) * steps_s
    if not is_worth(report, cost, INPUT_FROM):
        return
    name = parts[0].name if parts else "data_loading"
    evidence = [f"{part.name} takes {words.duration(part.mean_ns)} of a step" for part in parts[:3]]
    slow = next((one for one in report.slow if one.what == name), None)
    if slow is not None:
        evidence.append(f"most on rank {slow.rank} on {slow.node}, score {slow.score:.2f}")
    late = report.slowdown if report.slowdown is not None and report.slowdown.kind == "input" else None
    if late is not None:
        evidence.append(
            f"since step {late.step}: {words.duration(late.part_before_ns)} before, "
            f"{words.duration(late.part_after_ns)} from then on"
        )
    yield Finding(
        kind="input-bound",
        title=f"Training waits for its input: {of_all(report, cost)}, went into {name}.",
        evidence=tuple(evidence),
        look="Give the loader more workers, prefetch, or see how fast the storage is; compute waits for neither.",
        cost_s=cost,
        rank=slow.rank if slow else None,
        section=name,
        since_ns=late.at_ns if late else None,
        since_step=late.step if late else None,
    )


def evaluation(report: Report) -> Iterator[Finding]:
    """Tell how long validation and testing took."""
    cost = bucket(report, "VALIDATION")
    if is_worth(report, cost, EVALUATION_FROM):
        yield Finding(
            kind="evaluation",
            title=f"Validation took {of_all(report, cost)}.",
            evidence=(f"{words.plural(sum(m.kind == 'validation' for m in report.marks), 'validation')}",),
            look="Validate less often, or on less.",
            cost_s=cost,
        )


def custom(report: Report) -> Iterator[Finding]:
    """Tell of the largest custom buckets."""
    customs = report.goodput.badput_s.get("CUSTOM_BADPUT_EVENTS", {})
    for name, cost in sorted(customs.items(), key=lambda item: -item[1])[:2]:
        if is_worth(report, cost, CUSTOM_FROM):
            yield Finding(
                kind="custom",
                title=f"{name} took {of_all(report, cost)}.",
                evidence=("spans that are marked so by badput_type",),
                look="See whether it can run beside training.",
                cost_s=cost,
                section=name,
            )


def unaccounted(report: Report, apart_s: float) -> Iterator[Finding]:
    """Tell of time that is in no bucket of its own, less *apart_s* of it that is told elsewhere."""
    cost = bucket(report, "OTHER") - apart_s
    if is_worth(report, cost, UNACCOUNTED_FROM):
        yield Finding(
            kind="unaccounted",
            title=f"Nothing says what {of_all(report, cost)}, was spent on.",
            evidence=("time outside of steps and of spans with a known name",),
            look="Put spans around what happens between the steps, with badput_type if it should be a bucket.",
            cost_s=cost,
        )

"""The common part of the frameworks' tests: events as short lines, and the results of the models."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import trackside
from interrupting import Interruption, raising_signals
from trackside.events import Event, IterationEnded, RunsOn, SpanEnded, SpanStarted
from trackside.handlers import feed, replay
from trackside.handlers.models import GoodputAccumulator, ScoreAggregator, SpanBuilder, TrainingMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackside.bus import Subscription

E = TypeVar("E", bound=Event)
JOB = Path(__file__).with_name("frameworks.py")


def of(kind: type[E], events: Iterable[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


@contextlib.contextmanager
def subscribed(sink: str, directory: Path) -> Iterator[None]:
    """
    Subscribe a *sink* of one kind: ``recording`` to *directory*, ``raising``, or ``dead``, which never returns; none
    for ``none``.
    """
    released = threading.Event()

    def fail(_event: Event) -> None:
        raise OSError("this sink is broken")

    subscribe: dict[str, Callable[[], list[Subscription]]] = {
        "none": list,
        "recording": lambda: [trackside.subscribe(trackside.EventLog(directory / "runs"))],
        "raising": lambda: [trackside.subscribe(fail)],
        "dead": lambda: [trackside.subscribe(lambda _: released.wait(60), runs_on=RunsOn.WORKER)],
    }
    subscriptions = subscribe[sink]()
    try:
        yield
    finally:
        released.set()
        for subscription in subscriptions:
            subscription.close(5)


SINKS = pytest.mark.parametrize("sink", ["none", "recording", "raising", "dead"])


def left_open(events: list[Event]) -> list[str]:
    """Return the names of the long spans that were not closed."""
    closed = {event.span_id for event in events if type(event) is SpanEnded}
    return [event.name for event in of(SpanStarted, events) if event.span_id not in closed]


# Of two batches: the gradients are cleared before the first backward pass, used after the second one.
LIGHTNING_STEP = [
    *["data_loading", "model_forward", "zero_grad", "model_backward"],
    *["data_loading", "model_forward", "model_backward", "optimizer_update"],
]


def lightning_golden() -> list[str]:
    """
    Return the events of a fit: 20 steps of two batches, a save after each 5th, a validation of 3 batches after 10.
    """
    lines = ["training_loop {"]
    for step in range(20):
        lines += [*LIGHTNING_STEP, f"training {step}"]
        if step % 5 == 4:
            lines += ["checkpoint_save_sync {", f"saved {step}", "} checkpoint_save_sync"]
        if step % 10 == 9:
            lines += ["validation_loop {", *[f"validation {step}"] * 3, "} validation_loop"]
    return [*lines, "} training_loop"]


def lines_of(events: Iterable[Event]) -> list[str]:
    """Return *events* as short lines: starts ("x {"), ends ("} x") and single events."""
    return [line for event in events if (line := _line(event)) is not None]


def _line(event: Any) -> str | None:
    kind, name = type(event).__name__, getattr(event, "name", "")
    if kind == "SpanStarted":
        return f"{name} {{"
    if kind == "SpanEnded":
        return f"}} {name}" + (" failed" if event.error else "")
    if kind in {"ProfileSpanEnded", "IterationSpanEnded"}:
        return str(name)
    if kind == "IterationEnded":
        return f"{event.kind} {event.step}" + (" failed" if event.failed else "")
    if kind == "CheckpointSaveSucceeded":
        return f"saved {event.global_step}"
    if kind == "CheckpointSaveFailed":
        return f"not saved {event.global_step}"
    if kind == "SpanOutOfOrder":
        return f"out of order {name}: {event.problem}"
    return None


def models_of(directory: Path) -> list[Any]:
    """Return the results of the models of spans, metrics, goodput and scores over the log below *directory*."""
    models: tuple[Any, ...] = feed(
        replay(directory), SpanBuilder(), TrainingMetrics(), GoodputAccumulator(), ScoreAggregator()
    )
    return [model.result() for model in models]


def figures(directory: Path) -> dict[str, object]:
    """Return the results of the models for one run on one rank, side by side."""
    spans, metrics, goodput, scores = models_of(directory)
    (ours,), (measured,), window = spans.sources, metrics.sources, scores.windows[-1]
    totals = {total.name: total for total in ours.totals}
    counts = {name: total.count for name, total in totals.items()}
    training, saves = totals["training_single_iteration"], totals["checkpoint_save_sync"]
    pairs = [
        (saves.total_ns / 1e9, measured.checkpoints["sync"].save_checkpoint_sync_time_total_sec),
        (saves.total_ns / 1e9, goodput.badput_s["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"]),
    ]
    validation = measured.validation
    parts = ("data_loading", "model_forward", "model_backward", "optimizer_update")
    return {
        "run ids": len({source.run_id for source in spans.sources}),
        "ranks": [source.rank for source in spans.sources],
        "attempts": goodput.attempts,
        "steps": {
            "spans": training.count,
            "metrics": measured.training.num_iterations,
            "goodput": goodput.step_time.count,
            "scores": window.last_step - window.first_step + 1,
        },
        "last step": {
            "metrics": measured.training.current_iteration,
            "goodput": goodput.last_step,
            "scores": window.last_step,
        },
        "samples": measured.training.num_train_samples,
        "saves": {"spans": saves.count, "metrics": measured.productive.save_checkpoint_success_count},
        "validation": {
            "spans": counts.get("validation_loop", 0),
            "batches": 0 if validation is None else validation.num_iterations,
        },
        "parts": {part: counts.get(part, 0) for part in parts},
        "sections": sorted(window.relative.sections),
        "seconds agree": all(abs(one - other) < 1e-6 for one, other in pairs),
        "open": [span.name for span in ours.open],
        "out of order": [disorder.problem for disorder in ours.malformed],
        "ended": ours.end_reason,
    }


# 20 steps of two batches of two, saves after every 5th step, evaluations of three batches after every 10th.
FIGURES = {
    "run ids": 1,
    "ranks": [0],
    "attempts": 1,
    "steps": {"spans": 20, "metrics": 20, "goodput": 20, "scores": 20},
    "last step": {"metrics": 19, "goodput": 19, "scores": 19},
    "samples": 80,
    "saves": {"spans": 4, "metrics": 4},
    "validation": {"spans": 2, "batches": 6},
    "parts": {"data_loading": 40, "model_forward": 40, "model_backward": 40, "optimizer_update": 20},
    "sections": ["data_loading", "model_backward", "model_forward", "optimizer_update"],
    "seconds agree": True,
    "open": [],
    "out of order": [],
    "ended": "closed",
}


def check_recovery(directory: Path, *, dies_at: int) -> None:
    """
    Check the goodput of a job that died in a step and went on from the checkpoint of every 5th one.

    Of 20 steps, when it dies in the one with the number 7: 0 to 6 are completed, 5 were saved, so 5 and 6 are wasted
    and a part of 7; the second attempt completes 5 to 19; and 7 + 15 steps were timed.
    """
    goodput = models_of(directory)[2]
    by_attempt: dict[int, list[Event]] = {}
    for event in replay(directory):
        by_attempt.setdefault(event.source.attempt, []).append(event)
    first, last = by_attempt[min(by_attempt)], by_attempt[max(by_attempt)]
    again = dies_at // 5 * 5
    steps = [_training(events) for events in (first, last)]
    assert [event.step for event in steps[0] if not event.failed] == list(range(dies_at))
    assert [event.step for event in steps[1]] == list(range(again, 20))
    assert (goodput.attempts, goodput.disruptions, goodput.last_step) == (2, 1, 19)
    assert goodput.step_time.count == dies_at + 20 - again
    wasted = [event.duration_ns / 1e9 for event in steps[0] if event.step >= again and not event.failed]
    assert len(wasted) == dies_at - again
    # A step more or less: the one that failed may have lasted any part of one.
    assert goodput.badput_s["WASTED_PROGRESS_FROM_DISRUPTION"] == pytest.approx(sum(wasted), abs=max(wasted))
    gap_s = (min(event.at_ns for event in last) - max(event.at_ns for event in first)) / 1e9
    assert abs(goodput.badput_s["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] - gap_s) <= 0.1
    loads = [event.duration_ns / 1e9 for event in of(SpanEnded, last) if event.name == "checkpoint_load"]
    assert loads
    assert goodput.badput_s["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"] == pytest.approx(sum(loads), abs=1e-6)


def _training(events: Iterable[Event]) -> list[IterationEnded]:
    return [event for event in of(IterationEnded, events) if event.kind == "training"]


def last_steps(directory: Path) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the rank and the number of ranks of each source of the one run, and the last step that each completed."""
    events = list(replay(directory))
    assert len({event.source.run_id for event in events}) == 1
    steps = {
        (event.source.rank, event.source.world_size): event.step for event in _training(events) if not event.failed
    }
    return sorted(steps), [steps[key] for key in sorted(steps)]


def launch(
    framework: str,
    directory: Path,
    *,
    ranks: int,
    dies_at: int | str = -1,
    restarts: int = 0,
    timeout_s: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Run the job of this file under torchrun; return its result."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command += [str(JOB), framework, str(directory), str(dies_at)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s, env=environ)


def interrupt(train: Callable[[], object]) -> None:
    """Have a signal handler of the program raise while *train* has its fourth step recorded; it has to come out."""
    before = trackside.stats().lost
    with raising_signals() as raise_now:
        moments = [raise_now]

        def disturb(event: Event) -> None:
            if event.step == 3 and moments:
                moments.pop()()

        with trackside.subscribe(disturb, to=IterationEnded), pytest.raises(Interruption):
            train()
    assert trackside.stats().lost == before + 1  # the delivery that was interrupted

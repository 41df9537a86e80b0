"""The events of a real plain PyTorch loop on a tiny model, recorded by one line, and the models' results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import trackside

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("torch")


import framework_checks as checks  # noqa: E402  after what may skip all of this
import frameworks  # noqa: E402

lines_of = checks.lines_of

STEP = [
    *["data_loading", "model_forward", "model_backward"],
    *["data_loading", "model_forward", "model_backward", "optimizer_update"],
]


def golden():
    """Return the events of a loop: 20 steps of two batches, a save after every 5th, an evaluation of 3 after 10."""
    lines = ["training_loop {"]
    for step in range(20):
        lines += [*STEP, f"training {step}"]
        if step % 5 == 4:
            lines += ["checkpoint_save_sync {", f"saved {step}", "} checkpoint_save_sync"]
        if step % 10 == 9:
            lines += ["validation_loop {", *[f"validation {step}"] * 3, "} validation_loop"]
    return [*lines, "} training_loop"]


def test_golden(events, tmp_path):
    """A loop with accumulation, evaluation and saves is recorded in this order."""
    frameworks.train_by_hand(tmp_path, trackside.instrument)
    assert lines_of(events) == golden()


@checks.SINKS
def test_same_losses(sink, tmp_path):
    """Every loss is the same to the last bit, whatever happens to the events."""
    plain = frameworks.train_by_hand(tmp_path / "plain")
    with checks.subscribed(sink, tmp_path):
        watched = frameworks.train_by_hand(tmp_path / "watched", trackside.instrument)
    assert [loss.item().hex() for loss in watched] == [loss.item().hex() for loss in plain]


def test_all_comes_out(tmp_path):
    """Spans, metrics, goodput and scores come out of the one line, and agree with each other."""
    strict = trackside.JobConfig(application_name="tiny", strict=True)  # so that any problem is an error
    with trackside.start(tmp_path / "runs", job=strict, report=False):
        frameworks.train_by_hand(tmp_path, trackside.instrument)
    assert checks.figures(tmp_path / "runs") == checks.FIGURES


@pytest.mark.hang_guard(180)
def test_backward_under_ddp(tmp_path):
    """Under DistributedDataParallel the slow rank is 0.1 s longer in its backward pass, and the other waits for it."""
    program = Path(__file__).with_name("ddp_rank.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    subprocess.run([*command, str(tmp_path)], check=True, timeout=150, capture_output=True)
    timed = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    computed, waited = (
        [rank["spans"][name] for rank in timed] for name in ("model_backward", "gradient_synchronization")
    )
    assert [len(own) for own in (*computed, *waited)] == [12] * 4
    assert min(computed[1]) >= 100e6
    assert sum(waited[0]) > sum(waited[1])
    for rank, own in enumerate(timed):
        assert sum(own["clock"]) * 0.9 < sum(computed[rank]) + sum(waited[rank]) <= sum(own["clock"])

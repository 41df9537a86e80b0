"""Windows of training metrics that are reported by time, because their iterations are long."""

from __future__ import annotations

import pytest

from processes import Process
from trackside.events import IterationEnded, TrainingConfigured, TrainingWindowUpdated
from trackside.handlers import Capture
from trackside.handlers.models import TrainingMetrics

pytestmark = pytest.mark.once

S = 10**9


def test_long_iterations():
    """Of iterations of 11 s each third one is reported, though windows are of 50."""
    updates = Capture()
    model = TrainingMetrics(publish=updates)
    job = Process(at_ns=S).add(TrainingConfigured, perf_tag=["long"], log_every_n_train_iterations=50)
    for step in range(7):
        job.at_ns += 11 * S
        job.add(IterationEnded, duration_ns=11 * S, span_id=2 + step, parent_span_id=1, step=step)
    for event in job.events:
        model(event)
    windows = [update for update in updates.events if isinstance(update, TrainingWindowUpdated)]
    assert [(window.step, window.num_iterations) for window in windows] == [(2, 3), (5, 3)]

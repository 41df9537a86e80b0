"""Windows of training metrics that are reported by time, because their iterations are long or short."""

from __future__ import annotations

import pytest

from processes import Process
from trackside.events import IterationEnded, TrainingConfigured, TrainingWindowUpdated
from trackside.handlers import Capture
from trackside.handlers.models import TrainingMetrics

pytestmark = pytest.mark.once

S = 10**9
MS = 10**6


def windows(job, steps, each_ns):
    """Return the last step and the iterations of each window that is reported in *steps* iterations."""
    updates = Capture()
    model = TrainingMetrics(publish=updates)
    for step in range(steps):
        job.at_ns += each_ns
        job.add(IterationEnded, duration_ns=each_ns, span_id=2 + step, parent_span_id=1, step=step)
    for event in job.events:
        model(event)
    found = [update for update in updates.events if isinstance(update, TrainingWindowUpdated)]
    return [(window.step, window.num_iterations) for window in found]


@pytest.fixture
def job():
    return Process(at_ns=S)


def test_long_iterations(job):
    """Of iterations of 11 s each third one is reported, though windows are of 50."""
    job.add(TrainingConfigured, perf_tag=["long"], log_every_n_train_iterations=50)
    assert windows(job, 7, 11 * S) == [(2, 3), (5, 3)]


def test_short_iterations(job):
    """A window of iterations of 7 ms has 150: of 50 they would take less than a second."""
    assert windows(job, 400, 7 * MS) == [(149, 150), (299, 150)]


def test_no_number(job):
    """So it has if the configuration names no number."""
    job.add(TrainingConfigured, perf_tag=["short"], log_every_n_train_iterations=7).add(
        TrainingConfigured, perf_tag=["short"]
    )
    assert windows(job, 400, 7 * MS) == [(149, 150), (299, 150)]


def test_a_number(job):
    """Of the number that the configuration names, a window has exactly as many, however short they are."""
    job.add(TrainingConfigured, perf_tag=["short"], log_every_n_train_iterations=50)
    assert windows(job, 120, 7 * MS) == [(49, 50), (99, 50)]

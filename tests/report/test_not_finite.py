"""The report of losses that are NaN or infinite: which series, since when, and whether they stayed so."""

from __future__ import annotations

import math

import pytest

from trackside.events import CounterWindow, IterationEnded, MetricsLogged, Source, SourceEnded
from trackside.report import read_report
from trackside.report._plain_text import report_lines

pytestmark = pytest.mark.once

S = 10**9
MS = 10**6
START_NS = 1_700_000_000 * S
STEPS = 100


@pytest.fixture
def reported(tmp_path, write_events):
    """
    Give a function that reports on a job of 100 steps of 10 ms: its losses by step, 1.0 unless given, and the events
    that come after a step.
    """

    def run(losses=None, after=None, attempt=0):
        events = []
        for step in range(STEPS):
            at_ns = START_NS + attempt * 60 * S + (step + 1) * 10 * MS
            loss = (losses or {}).get(step, 1.0)
            ended = IterationEnded(at_ns=at_ns, step=step, span_id=step + 1, duration_ns=10 * MS, loss=loss)
            events += [ended, *(of(at_ns) for of in (after or {}).get(step, ()))]
        events.append(SourceEnded(at_ns=events[-1].at_ns, step=-1, span_id=0, reason="closed"))
        source = Source(id=f"{attempt:016x}", run_id="run", rank=0, attempt=attempt, world_size=1)
        write_events(tmp_path, source, events)
        return read_report(tmp_path)

    return run


def window(*values, name="train/loss", total=None):
    """Return a function that gives the window of a gauge with *values*, as the collector closes it."""
    numbers = [value for value in values if not math.isnan(value)]
    bad = [value for value in values if not math.isfinite(value)]
    before = sum(not math.isnan(value) for value in values[: values.index(bad[0])]) if bad else 0

    def event(at_ns):
        return CounterWindow(
            at_ns=at_ns, step=-1, span_id=0, name=name, kind="gauge", start_ns=START_NS, end_ns=at_ns,
            count=len(numbers), values={"value": numbers[-1]} if numbers else {}, total_count=len(numbers),
            total_sum=sum(numbers) if total is None else total, non_finite=len(bad), before_non_finite=before,
        )  # fmt: skip

    return event


def said(report):
    """Return the titles of the findings about losses."""
    return [one.title for one in report.verdict.findings if one.kind == "not-finite"]


class TestOwnLoss:
    def test_stays(self, reported):
        """A loss that is NaN in every step from 70 on is NaN since step 70."""
        assert said(reported(dict.fromkeys(range(70, 100), math.nan))) == ["The loss is NaN since step 70, on rank 0."]

    def test_one_step(self, reported):
        """A loss that is infinite in step 30 alone was finite in steps 31 to 99: 69 of them."""
        assert said(reported({30: math.inf})) == [
            "The loss was infinite in 1 step, step 30, and finite in the 69 after it, on rank 0."
        ]

    def test_several_steps(self, reported):
        """The latest steps in a row are named, and the evidence has the number of earlier ones."""
        report = reported({3: math.nan, 30: math.inf, 31: math.inf})
        assert said(report) == [
            "The loss was infinite in 2 steps, from step 30 on, and finite in the 68 after them, on rank 0."
        ]
        assert "1 value before that were NaN or infinite too" in report.verdict.findings[0].evidence

    def test_both(self, reported):
        """A loss that is infinite and then NaN is called neither of them alone."""
        report = reported({30: math.inf, **dict.fromkeys(range(31, 100), math.nan)})
        assert said(report) == ["The loss is NaN or infinite since step 30, on rank 0."]

    def test_recovered_is_a_remark(self, reported):
        """Nothing is to be started again from a checkpoint if the loss became finite, and it is no failure."""
        (found,) = reported({30: math.inf}).verdict.findings
        assert (found.until_step, "checkpoint" in found.look) == (30, False)

    def test_later_attempt(self, reported):
        """A loss that was NaN until its attempt ended was finite in the 100 steps of the next one."""
        reported(dict.fromkeys(range(98, 100), math.nan))
        assert said(reported(attempt=1)) == [
            "The loss was NaN in 2 steps, from step 98 on, and finite in the 100 after them, on rank 0."
        ]

    def test_curve(self, reported):
        """The curve has the 99 finite losses, and the report says of how many steps it lacks the loss."""
        report = reported({30: math.inf})
        text = "\n".join("".join(part for part, _ in line) for line in report_lines(report, 300))
        assert sum(one.count for _, one in report.loss) == 99
        assert "loss 1 (median of steps" in text or "loss 1 in step 0" in text
        assert "the loss of 1 step is NaN or infinite, and left out" in text


class TestOtherSeries:
    def test_metric(self, reported):
        """A value of `trackside.metrics` is named, with the step after which it came."""
        logged = [
            lambda at_ns: MetricsLogged(at_ns=at_ns, step=-1, span_id=0, values={"val_loss": math.nan}),
        ]
        report = reported(after={50: logged, 99: [window(math.nan, name="val_loss")]})
        assert said(report) == ["val_loss is NaN since step 50, on rank 0."]
        assert "The iterations' own loss is finite" in report.verdict.findings[0].look

    def test_before_the_first(self, reported):
        """A gauge of the least loss that begins at infinity, and then is finite, is healthy."""
        assert said(reported(after={99: [window(math.inf, math.inf, 1.0, 0.5, name="train.best_loss")]})) == []

    def test_before_the_first_window(self, reported):
        """The same holds if the first finite value comes in another window."""
        assert said(reported(after={50: [window(math.inf)], 99: [window(1.0, total=math.inf)]})) == []

    def test_scale(self, reported):
        """The factor of a gradient scaler is no loss."""
        assert said(reported(after={99: [window(1.0, math.inf, name="amp.loss_scale")]})) == []

    def test_infinite(self, reported):
        """A gauge set in each step, 1.0 in 50 of them and then infinite, is infinite since step 50."""
        values = [1.0] * 50 + [math.inf] * 50
        assert said(reported(after={99: [window(*values)]})) == ["train/loss is infinite since step 50, on rank 0."]

    def test_between(self, reported):
        """Of a window with fewer values than steps only its bounds are known: 41 to 80 after one that ended at 40."""
        report = reported(after={40: [window(1.0)], 80: [window(1.0, math.nan)]})
        assert said(report) == ["train/loss is NaN since one of the steps 41 to 80, on rank 0."]

    def test_one_infinite(self, reported):
        """One value that makes the total infinite is infinite, although the window's last value is finite."""
        values = [1.0] * 30 + [math.inf] + [1.0] * 69
        assert said(reported(after={99: [window(*values)]})) == [
            "train/loss was infinite in 1 value, step 30, and finite later, on rank 0."
        ]

    def test_later_window(self, reported):
        """A value that was not finite is over if a later window has only finite ones."""
        report = reported(after={50: [window(1.0, math.nan)], 99: [window(1.0)]})
        assert said(report) == ["train/loss was NaN in 1 value, one of the steps 0 to 50, and finite later, on rank 0."]

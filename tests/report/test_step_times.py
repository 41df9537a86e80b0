"""The steps of one process, reduced to means of neighbours if there are very many."""

from __future__ import annotations

import statistics

import pytest

from trackside.cli import main
from trackside.events import IterationEnded, SpanEnded, SpanStarted
from trackside.handlers import replay
from trackside.handlers.models.steps import StepTimer
from trackside.report import Selected, Top, _gather, compare, read_report

pytestmark = pytest.mark.once


class TestStepTimes:
    def test_few(self):
        """Few steps are kept unchanged."""
        times = _gather.StepLengths()
        times.add_many([5, 6, 7], [10.0, 20.0, 30.0])
        assert (list(times.numbers), list(times.lengths_ns), times.block) == ([5, 6, 7], [10.0, 20.0, 30.0], 1)

    @pytest.mark.parametrize("size", [1, 7, 8, 100])
    def test_many(self, size, monkeypatch, rng):
        """Of many the means of equal blocks are kept, each with its first step; at most one block's worth waits."""
        monkeypatch.setattr(_gather, "_MOST_STEPS", 16)
        lengths = [float(rng.randrange(100)) for _ in range(203)]
        times = _gather.StepLengths()
        for start in range(0, len(lengths), size):
            part = lengths[start : start + size]
            times.add_many(range(start, start + len(part)), part)
        block = times.block
        expected = [sum(lengths[at : at + block]) / block for at in range(0, len(lengths) - block + 1, block)]
        assert len(times.lengths_ns) < 16
        assert list(times.lengths_ns) == pytest.approx(expected)
        assert list(times.numbers) == list(range(0, len(expected) * block, block))


class TestEveryView:
    """
    One job, one step time: in every view it goes from the end of a step to the end of the next one.

    Loading takes 50 ms of it, forward 40, backward 60, the exchange 10, and what is in no span 20: 180 ms. Saves and
    validations lie between steps and are part of none.
    """

    STEP_S = 0.18

    @pytest.fixture
    def job(self, made_up):
        """Return the logs of two ranks."""
        steady = {"ranks": 2, "noise": 0, "stumbles": 0, "save_every": 50, "validate_every": 50, "validation_s": 1.0}
        return made_up(loading_s=0.05, forward_s=0.04, backward_s=0.06, reduce_s=0.01, between_s=0.02, **steady)

    def test_figures(self, job):
        """The quantiles, the chart, the parts, the throughput, the page of runs and top speak of the same interval."""
        report, top = read_report(job), Top()
        events = list(replay(job))
        for event in events:
            top.drive(event)
        found = compare(Selected("a", [job]), Selected("b", [job]))
        assert report.step_time.p50_s == found.before.step_p50_s
        assert {
            "report": report.step_time.p50_s,
            "chart": statistics.median(point.median for _, point in report.steps) / 1e9,
            "parts": sum(part.mean_ns for part in report.parts) / 1e9,
            "throughput": 32 / report.samples_per_s,
            "compared": found.before.step_p50_s,
            "typical": found.judged[0].difference.before,
            "mean": found.judged[1].difference.before,
            "top": top.view(events[-1].at_ns).step_ns / 1e9,
            "metrics": statistics.median(self.timed(event for event in events if event.source.rank == 0)) / 1e9,
        } == dict.fromkeys(
            ("report", "chart", "parts", "throughput", "compared", "typical", "mean", "top", "metrics"),
            pytest.approx(self.STEP_S, rel=0.005),
        )

    def timed(self, events):
        """Yield the step times that the metrics and all sinks have."""
        timer = StepTimer()
        for event in events:
            if isinstance(event, SpanStarted):
                timer.span_started(event)
            elif isinstance(event, SpanEnded):
                timer.span_ended(event)
            elif isinstance(event, IterationEnded) and (step := timer.iteration_ended(event)) is not None:
                yield step.step_ns

    def test_printed(self, job, capsys):
        """The printed step time is that; goodput has a step's own time, under another name."""
        assert main(["compare", str(job), str(job)]) == 0
        assert "300 steps, half of them in less than 180 ms" in capsys.readouterr().out
        assert main(["report", str(job)]) == 0
        assert "Half of the steps on rank 0 took less than 180 ms." in " ".join(capsys.readouterr().out.split())
        assert main(["goodput", str(job)]) == 0
        said = capsys.readouterr().out
        # Without loading, and without what is between two steps: 40 + 60 + 10 ms.
        assert ("own time of a step: ideal 110 ms, p50 110 ms" in said, "step time" in said) == (True, False)

"""The verdict on labelled jobs: the cause comes first, with its rank and step, and no other rank is accused."""

from __future__ import annotations

import json
import sys

import pytest

from trackside.cli import main
from trackside.handlers import feed, replay
from trackside.handlers.models.scores import ScoreAggregator
from trackside.report import Selected, Top, compare, read_report

pytestmark = pytest.mark.once


class TestSimulated:
    def test_cause_is_first(self, simulated, test_bed, tmp_path):
        """The labelled cause is the first finding, its rank, part and first step right; no other rank is accused."""
        labelled = test_bed.JOBS[simulated]
        assert labelled.mistakes(read_report(labelled.job.write(tmp_path)).verdict) == []

    def test_healthy(self, test_bed, tmp_path, request):
        """Of 200 healthy jobs on noisy machines, a tenth of them unless --full, none is accused of anything."""
        accused = {}
        for seed in range(round(200 * request.config.option.scale)):
            labelled = test_bed.Labelled(cause="healthy", kind=None, job=test_bed.healthy(seed))
            mistakes = labelled.mistakes(read_report(labelled.job.write(tmp_path / str(seed))).verdict)
            if mistakes:
                accused[seed] = mistakes
        assert accused == {}


class TestRecorded:
    def test_cause_is_first(self, recorded, real_jobs, tmp_path):
        """The logs that a real job left are judged as its label says."""
        assert real_jobs.REAL[recorded].mistakes(real_jobs.replayed(recorded, tmp_path).verdict) == []

    def test_stragglers_by_scores(self, recorded, real_jobs, tmp_path):
        """The scores of its sections accuse no rank but the late one."""
        reports = []
        feed(replay(real_jobs.unpacked(recorded, tmp_path)), ScoreAggregator(on_report=reports.append))
        labelled = real_jobs.REAL[recorded]
        accused = {one.rank for report in reports for one in report.stragglers}
        assert accused <= {labelled.rank, *labelled.beside}


class TestSummary:
    @pytest.mark.parametrize(
        ("name", "bound"),
        [
            ("plain loop, torchrun: heavy network", "the exchange between ranks: 80 %"),
            ("Lightning: healthy", "the exchange between ranks: 59 %"),
            ("sections by hand: forward", "waiting for others: 61 %"),
            ("plain loop, torchrun: slow ranks in turn", "waiting for others: 50 %"),
            ("Lightning: a pause every 10 steps", "waiting for others: 59 %"),
        ],
    )
    def test_bound(self, name, bound, real_jobs, tmp_path):
        """Steps are bound by waiting for others only where that, and not the exchange, is most of the waiting."""
        assert f"Steps are bound by {bound} of one is" in real_jobs.replayed(name, tmp_path).verdict.summary


class TestViews:
    def test_where_the_time_went(self, real_jobs, tmp_path, capsys):
        """The report, goodput as text and data, compare and top name the same parts of a job, with equal figures."""
        report = real_jobs.replayed("plain loop, torchrun: evaluations of one rank", tmp_path)
        (bar,) = report.attempts
        elapsed_s = report.goodput.elapsed_s
        reported = {name: length for name, length in bar.buckets_s.items() if name != "PRODUCTIVE"}
        assert {"VALIDATION", "BEFORE_FIRST_STEP", "AFTER_LAST_STEP"} < reported.keys()
        assert sum(bar.buckets_s.values()) == pytest.approx(elapsed_s)

        logs = str(tmp_path / "runs")
        main(["goodput", "--json", logs])
        data = json.loads(capsys.readouterr().out)["named_badput_s"]
        assert {name: length for name, length in data.items() if length} == pytest.approx(reported)
        main(["goodput", logs])
        text = capsys.readouterr().out
        assert {line.split()[-1] for line in text.split("\n\n")[1].splitlines()} - {"%"} == reported.keys()

        side = Selected("runs", [logs])
        shares = {row.name: row.difference.before for row in compare(side, side).buckets if row.difference.before}
        assert shares == pytest.approx({name: length / elapsed_s for name, length in reported.items()}, abs=1e-3)

        top = Top()
        for event in replay(logs):
            top.drive(event)
        largest = sorted(reported.items(), key=lambda item: -item[1])[:4]
        shown = dict(top.view(report.goodput.end_ns).badput)
        assert shown == pytest.approx({name: length / elapsed_s for name, length in largest})


@pytest.mark.torch
@pytest.mark.integration
class TestReal:
    @pytest.mark.hang_guard(660)
    def test_cause_is_first(self, in_ci, real_jobs, tmp_path):
        """A real job of two ranks: the labelled cause is the first finding, with its rank."""
        pytest.importorskip("torch")
        if sys.platform == "win32":
            pytest.skip("torchrun's gloo needs POSIX here")
        labelled = real_jobs.REAL[in_ci]
        assert labelled.mistakes(read_report(real_jobs.run_real(labelled, tmp_path)).verdict) == []

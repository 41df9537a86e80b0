"""The verdict on labelled jobs: the cause comes first, with its rank and step, and no other rank is accused."""

from __future__ import annotations

import sys

import pytest

from trackside.report import read_report

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

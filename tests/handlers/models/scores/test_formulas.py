from __future__ import annotations

import pytest

from trackside.handlers.models.scores import gpu_score, is_nccl, lowest, section_scores, total_times

pytestmark = pytest.mark.once


class TestLowest:
    def test_columns(self):
        """The reference is the smallest value of each column."""
        assert lowest([[3.0, 1.0], [2.0, 5.0]]) == [2.0, 1.0]

    def test_one_row(self):
        """A rank alone is its own reference."""
        assert lowest([[3.0, 1.0]]) == [3.0, 1.0]


class TestSectionScores:
    def test_ratio(self):
        """A section that takes twice the reference scores a half, one at the reference 1."""
        assert section_scores([10.0, 10.0], [20.0, 10.0]) == [0.5, 1.0]


class TestGpuScore:
    def test_weighted_by_time(self):
        """
        Kernels of scores 1/2 and 1 and times 30 and 10 make (15 + 10) / 40.
        """
        assert gpu_score([5.0, 4.0], [10.0, 4.0], [30.0, 10.0]) == pytest.approx(0.625, abs=1e-12)

    def test_nothing(self):
        """Without kernels there is no score."""
        assert gpu_score([], [], []) is None

    def test_no_time(self):
        """Without time spent there is no score, and no division by zero."""
        assert gpu_score([1.0], [1.0], [0.0]) is None


class TestTotalTimes:
    def test_product(self):
        """A kernel's weight is its launches times their mean."""
        assert total_times([2, 3], [10.0, 5.0]) == [20.0, 15.0]


class TestIsNccl:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", True),
            ("void ncclDevKernel", True),
            ("volta_sgemm_128x64_nn", False),
        ],
    )
    def test_names(self, name, expected):
        """NCCL's kernels are recognised by their names."""
        assert is_nccl(name) is expected

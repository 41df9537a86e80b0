"""The steps of one process, reduced to means of neighbours if there are very many."""

from __future__ import annotations

import pytest

from trackside.report import _gather

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

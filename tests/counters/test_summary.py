"""Summaries of samples: against the statistics module, and by hand."""

from __future__ import annotations

import decimal
import fractions
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.counters import Aggregation
from trackside.counters._aggregation import EXTREMES, SKETCH, SPREAD
from trackside.counters._samples import SampleChunk, SampleSummary, Total, checked, number

EVERYTHING = EXTREMES | SPREAD | SKETCH
ALL = tuple(Aggregation)


def summary_of(*chunks, needs=EVERYTHING):
    summary = SampleSummary(needs)
    for values in chunks:
        summary.add(SampleChunk(list(values), sum(values), needs))
    return summary


def cut(values, sizes):
    """Cut *values* into parts of the *sizes* given, and a last part."""
    parts = []
    for size in sizes:
        parts.append(values[:size])
        values = values[size:]
    return [part for part in (*parts, values) if part]


class TestSummary:
    def test_by_hand(self):
        """Of 2, 4, 4, 4, 5, 5, 7, 9: count 8, sum 40, mean 5, deviation 2, as in every textbook."""
        values = summary_of([2, 4, 4], [4, 5, 5, 7], [9]).values(ALL)

        assert {name: values[name] for name in ("value", "count", "sum", "mean", "min", "max")} == {
            "value": 9,
            "count": 8,
            "sum": 40,
            "mean": 5,
            "min": 2,
            "max": 9,
        }
        assert values["stddev"] == pytest.approx(2, rel=1e-12)

    def test_empty(self):
        """Of no values there is a count and a sum of 0, and nothing else."""
        assert summary_of().values(ALL) == {"count": 0, "sum": 0}

    def test_only_what_was_asked_for(self):
        """A summary has only the statistics that were asked for."""
        assert summary_of([1, 2]).values((Aggregation.MEAN,)) == {"mean": 1.5}

    def test_one_value(self):
        """A single value has a deviation of 0."""
        assert summary_of([3.5]).values(ALL)["stddev"] == 0

    @given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.lists(st.integers(0, 5)))
    def test_against_statistics(self, values, sizes):
        """For any chunks of the values, mean and deviation are those of the statistics module."""
        recorded = summary_of(*cut(values, sizes)).values(ALL)

        assert recorded["mean"] == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
        assert recorded["stddev"] == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-5)
        assert (recorded["min"], recorded["max"], recorded["value"]) == (min(values), max(values), values[-1])

    def test_small_spread_around_a_large_mean(self):
        """Times since the epoch in ns differ by 1: a sum of squares would lose that altogether."""
        recorded = summary_of([1.7e18, 1.7e18 + 512], [1.7e18, 1.7e18 + 512]).values(ALL)

        assert recorded["stddev"] == 256

    def test_percentiles_stay_within_the_extremes(self):
        """Percentiles of a constant are that constant, not something within 1 % of it."""
        recorded = summary_of([0.3, 0.3, 0.3]).values(ALL)

        assert [recorded[name] for name in ("p50", "p90", "p95", "p99")] == [0.3] * 4

    def test_percentiles_by_hand(self):
        """Of 1 to 101 the percentiles have rank 50, 90, 95 and 99 from 0: 51, 91, 96 and 100, within 1 %."""
        recorded = summary_of(range(1, 60), range(60, 102)).values(ALL)

        assert [recorded[name] for name in ("p50", "p90", "p95", "p99")] == pytest.approx([51, 91, 96, 100], rel=0.01)

    def test_of_infinities(self):
        """Undefined statistics are left out: both infinities have neither sum nor mean, but a minimum."""
        recorded = summary_of([math.inf, -math.inf, 1.0]).values(ALL)

        assert "sum" not in recorded
        assert "mean" not in recorded
        assert "stddev" not in recorded
        assert (recorded["count"], recorded["min"], recorded["max"]) == (3, -math.inf, math.inf)


class TestTotal:
    def test_ints_stay_ints(self):
        """A sum of ints is exact beyond what floats can hold."""
        total = Total()
        total.add(2**60)
        total.add(1)

        assert total.value == 2**60 + 1

    def test_does_not_drift(self):
        """Ten million times 0.1, added in ten thousand chunks, is what fsum of the chunks is."""
        total = Total()
        chunk = math.fsum([0.1] * 1000)
        for _ in range(10_000):
            total.add(chunk)

        assert total.value == math.fsum([chunk] * 10_000)

    def test_small_next_to_large(self):
        """Small amounts lost in the sum beside a large one are restored when it is subtracted."""
        total = Total()
        for amount in (1e16, 1.0, 1.0, -1e16):
            total.add(amount)

        assert total.value == 2.0

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)))
    def test_against_fsum(self, amounts):
        """The sum differs from the exact one by a few roundings at most."""
        total = Total()
        for amount in amounts:
            total.add(amount)

        assert total.value == pytest.approx(math.fsum(amounts), rel=1e-15, abs=1e-25 * sum(map(abs, amounts)))

    def test_infinity_stays(self):
        """An infinite amount makes an infinite sum, not a NaN."""
        total = Total()
        for amount in (1.0, math.inf, 5):
            total.add(amount)

        assert total.value == math.inf

    def test_ints_beyond_floats_meet_a_float(self):
        """A sum of ints that no float can hold becomes infinite when a float is added, and no error."""
        total = Total()
        total.add(10**400)
        total.add(0.5)

        assert total.value == math.inf


class Odd:
    """A number of an unknown kind."""

    def __float__(self):
        return 2.5


class Broken:
    def __float__(self):
        raise RuntimeError("no number today")


class Device:
    type = "cuda"

    def __str__(self):
        return "cuda:0"


class OnDevice:
    """An array on another device, which fails the test if anybody reads it."""

    device = Device()
    ndim = 0

    def __float__(self):
        raise AssertionError("the device was waited for")

    item = __float__
    __radd__ = __float__


class TestChecked:
    @pytest.mark.parametrize(
        ("sample", "expected"),
        [(1, 1), (1.5, 1.5), (True, 1), (math.inf, math.inf), (Odd(), 2.5), (fractions.Fraction(1, 4), 0.25)],
    )
    def test_numbers(self, sample, expected):
        """Numbers of any kind are read, next to floats and alone."""
        assert number(sample) == expected
        assert checked([sample], EVERYTHING, None)[0].values == [expected]
        chunk, invalid, *_ = checked([1.0, sample], EVERYTHING, None)
        assert (chunk.values, chunk.total, invalid) == ([1.0, expected], 1.0 + expected, 0)

    def test_decimals(self):
        """Decimals, which do not add to floats, are read one by one."""
        chunk, invalid, *_ = checked([0.5, decimal.Decimal("0.25")], EVERYTHING, None)

        assert (chunk.total, invalid) == (0.75, 0)

    @pytest.mark.parametrize(
        ("sample", "reason"),
        [
            ("3", "a str is not one number"),
            (b"3", "a bytes is not one number"),
            (None, "a NoneType is not one number"),
            ([1.0], "a list is not one number"),
            (1j, "a complex is not one number"),
            (math.nan, "NaN is not a sample"),
            (10**400, "too large"),
            (Broken(), "no number today"),
            (OnDevice(), "a OnDevice on cuda:0 is not read, as that would wait for the device"),
        ],
    )
    @pytest.mark.parametrize("around", [[], [1.0], [1]])
    def test_invalid(self, sample, reason, around):
        """A sample that is not one number is left out with a reason; its neighbours count."""
        samples = [*around, sample, *around]
        chunk, invalid, recorded, _ = checked(samples, EVERYTHING, None)

        assert invalid == 1
        assert reason in recorded
        assert (chunk.values if chunk else []) == around * 2

    def test_numpy(self):
        """Scalars and arrays without dimensions are numbers, longer arrays are not."""
        numpy = pytest.importorskip("numpy")
        samples = [numpy.float32(0.5), numpy.float64(2.0), numpy.int64(3), numpy.bool_(True), numpy.array(4.0)]
        chunk, invalid, reason, _ = checked([*samples, numpy.array([1.0])], EVERYTHING, None)

        assert (chunk.values, invalid) == ([0.5, 2.0, 3.0, 1.0, 4.0], 1)
        assert reason == "a ndarray is not one number"
        assert {type(value) for value in chunk.values} == {float}

    @pytest.mark.torch
    def test_torch(self):
        """A loss is a number, also one that requires a gradient; a batch of losses is not."""
        import torch

        samples = [torch.tensor(0.5), torch.tensor(2.0, requires_grad=True), torch.tensor(3), 1.0]
        chunk, invalid, reason, _ = checked([*samples, torch.ones(2)], EVERYTHING, None)

        assert (chunk.values, invalid, reason) == ([0.5, 2.0, 3.0, 1.0], 1, "a Tensor is not one number")

    @pytest.mark.torch
    def test_torch_on_another_device(self):
        """A tensor that is not in this memory is refused."""
        import torch

        assert checked([torch.ones((), device="meta")], EVERYTHING, None)[1:3] == (
            1,
            "a Tensor on meta is not read, as that would wait for the device; record its item()",
        )

    def test_tensors_are_not_added_up(self):
        """Samples that are no plain numbers are not added to each other: on a device that would be work for it."""
        added = []

        class Tensor(Odd):
            def __radd__(self, other):
                added.append(other)
                return self

            __add__ = __radd__

        assert (checked([Tensor(), Tensor()], EVERYTHING, None)[0].total, added) == (5.0, [])

    def test_ints_stay_ints(self):
        """Ints are not rounded to floats, whatever stands next to them."""
        assert checked([2**60, 1], EVERYTHING, None)[0].total == 2**60 + 1
        assert checked([2**60, None, 1], EVERYTHING, None)[0].total == 2**60 + 1

    def test_parts(self):
        """A part of a chunk depends on its own values alone."""
        chunk, *_ = checked([5.0, 1.0, 9.0, 3.0], EVERYTHING, None)
        part = chunk.part(1, 3)

        assert (part.values, part.total, part.minimum, part.maximum, part.last) == ([1.0, 9.0], 10.0, 1.0, 9.0, 9.0)

"""The sketch: right within 1 %, bounded, and the same however it was merged."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.core.sketch import RELATIVE_ERROR, Sketch, quantiles_of
from trackside.events import DecodeError

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
ROUNDING = 1e-9

numbers = st.floats(allow_nan=False) | st.integers(-(10**6), 10**6)
in_range = st.floats(1e-17, 1e26) | st.floats(-1e26, -1e-17) | st.just(0.0)


def exact(values, q):
    return sorted(values)[int(q * (len(values) - 1))]


def is_close(found, expected):
    return abs(found - expected) <= (RELATIVE_ERROR + ROUNDING) * abs(expected)


def worst_error(values):
    sketch = Sketch(values)
    values = sorted(values)
    expected = [values[int(q * (len(values) - 1))] for q in QUANTILES]
    return max(abs(found / value - 1) for found, value in zip(sketch.quantiles(QUANTILES), expected, strict=True))


class TestQuantiles:
    @pytest.mark.parametrize(
        "draw",
        [
            pytest.param(lambda rng: rng.lognormvariate(-2, 1.5), id="log-normal"),
            pytest.param(lambda rng: rng.uniform(1e-3, 1e3), id="uniform"),
            pytest.param(lambda rng: rng.gauss(0.3, 0.004) + 5 * (rng.random() < 0.02), id="steps-with-stragglers"),
        ],
    )
    def test_of_each_shape(self, draw, rng):
        """Of samples of each shape, all quantiles are right within 1 %."""
        assert worst_error([draw(rng) for _ in range(50_000)]) <= RELATIVE_ERROR + ROUNDING

    def test_shape_of_pareto(self, rng):
        """A tail without a mean changes nothing."""
        assert worst_error([rng.paretovariate(0.8) for _ in range(50_000)]) <= RELATIVE_ERROR + ROUNDING

    @given(st.lists(in_range, min_size=1), st.floats(0, 1))
    def test_any_values(self, values, q):
        """For any values, zeros and negative ones included, a quantile is right within 1 %."""
        assert is_close(Sketch(values).quantile(q), exact(values, q))

    def test_by_hand(self):
        """The median of 1, 2, 3, 4 is that of rank floor(0.5 × 3) = 1, counted from 0: 2, within 1 %."""
        assert Sketch([4, 3, 2, 1]).quantile(0.5) == pytest.approx(2, rel=0.01)

    @given(st.lists(numbers, min_size=1))
    def test_without_a_sketch(self, values):
        """The quantiles of sorted values are exactly those of a sketch of them."""
        assert quantiles_of(sorted(values), QUANTILES) == Sketch(values).quantiles(QUANTILES)

    def test_more_values_than_floats_tell_apart(self):
        """The last of 2**60 values is found, though a float takes its rank, 2**60 - 1, for the one after."""
        sketch = Sketch([1.0])
        for _ in range(60):
            sketch.merge(sketch)
        assert sketch.quantile(1.0) == pytest.approx(1, rel=0.01)

    def test_empty(self):
        """Without values there is no quantile."""
        assert Sketch().quantile(0.5) is None

    def test_infinities(self):
        """Infinite values stand at the ends."""
        sketch = Sketch([math.inf, 1.0, -math.inf])

        assert [sketch.quantile(0.0), sketch.quantile(1.0)] == [-math.inf, math.inf]

    def test_beyond_the_range(self):
        """A value beyond the range is never reported as another finite one."""
        assert Sketch([1e30]).quantile(0.5) == math.inf
        assert Sketch([-1e300]).quantile(0.5) == -math.inf

    def test_next_to_zero(self):
        """A value too small for the range counts as zero."""
        assert Sketch([1e-30, -1e-30, 0.0, -0.0, 5e-324]).quantile(0.5) == 0.0

    def test_largest_operations(self):
        """A count of operations such as a training job's, 1e26, is in range."""
        assert is_close(Sketch([1e26]).quantile(0.5), 1e26)

    def test_ints_beyond_floats(self):
        """An int that no float can hold is beyond the range, and no error."""
        assert Sketch([10**400]).quantile(0.5) == math.inf


class TestMerge:
    @given(st.lists(st.lists(numbers), max_size=6), st.randoms())
    def test_equals_the_union(self, ranks, random):
        """The merged sketches of the ranks equal the sketch of all values, in whatever order they are merged."""
        merged = Sketch()
        for values in random.sample(ranks, len(ranks)):
            merged.merge(Sketch(values))

        assert merged == Sketch([value for values in ranks for value in values])

    def test_equals_the_union_of_wide_ranks(self, rng):
        """Also where each rank covers the whole range of floats, many more magnitudes than there are buckets."""
        ranks = [[rng.choice([-1, 1]) * 10 ** rng.uniform(-300, 300) for _ in range(2000)] for _ in range(8)]
        merged = Sketch()
        for values in ranks:
            merged.merge(Sketch(values))

        assert merged == Sketch([value for values in ranks for value in values])
        assert merged.to_wire() == Sketch([value for values in ranks for value in values]).to_wire()

    def test_leaves_the_other_alone(self):
        """Merging does not change the sketch that is merged in."""
        other = Sketch([1.0])
        sketch = Sketch([2.0])
        sketch.merge(other)
        sketch.add([3.0])

        assert other == Sketch([1.0])

    def test_empty_changes_nothing(self):
        """An empty sketch is neutral."""
        sketch = Sketch([1.0, -2.0])
        sketch.merge(Sketch())

        assert sketch == Sketch([1.0, -2.0])

    @given(st.lists(numbers))
    def test_count(self, values):
        """The count is the number of values."""
        assert Sketch(values).count == len(values)


class TestWire:
    @given(st.lists(numbers))
    def test_there_and_back(self, values):
        """A sketch comes back equal."""
        assert Sketch.from_wire(Sketch(values).to_wire()) == Sketch(values)

    def test_of_one_value(self):
        """Format 1, no zeros, one bucket above: the 2050th bound is 1, and no bucket below."""
        assert Sketch([1.0]).to_wire() == bytes([1, 0, 1, 0x80, 0x10, 1, 0])

    def test_size_is_bounded(self, rng):
        """The widest sketch that can be built, with a million samples in each bucket, takes less than 64 KiB."""
        gamma = 1.01 / 0.99
        sketch = Sketch([sign * gamma**exponent * 0.999 for sign in (1, -1) for exponent in range(-2048, 3080)])
        full = Sketch()
        for _ in range(20):
            full.merge(sketch)
            sketch.merge(full)

        assert full.count > 10_000_000 * 10_000
        assert len(full.to_wire()) < 65_536
        assert Sketch.from_wire(full.to_wire()) == full

    def test_of_a_step_time_is_small(self, rng):
        """A hundred thousand step times that vary by a tenth take less than 250 bytes."""
        assert len(Sketch([rng.gauss(0.3, 0.03) for _ in range(100_000)]).to_wire()) < 250

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (b"", "cut off"),
            (bytes([2, 0, 0, 0]), "format 2"),
            (bytes([1, 0, 1]), "cut off"),
            (bytes([1, 0, 0, 0, 0]), "after its end"),
            (bytes([1, 0, 1, 0, 0, 0]), "out of range"),
            (bytes([1, 0, 1, 0x82, 0x28, 1, 0]), "out of range"),
            (bytes([1, 0x80]), "cut off"),
            (bytes([1, *[0xFF] * 9, 1, 0, 0]), "63 bits"),
            (bytes(70_000), "70000 bytes"),
        ],
    )
    def test_malformed(self, data, what):
        """Data that is no sketch is a DecodeError that says why."""
        with pytest.raises(DecodeError, match=what):
            Sketch.from_wire(data)

    @given(st.binary(max_size=200))
    def test_any_bytes(self, data):
        """Bytes are either a sketch, which then goes back to equal ones, or a DecodeError."""
        try:
            sketch = Sketch.from_wire(data)
        except DecodeError:
            return
        assert Sketch.from_wire(sketch.to_wire()) == sketch

    def test_every_cut(self):
        """A sketch cut anywhere is no sketch."""
        data = Sketch([random.Random(3).lognormvariate(0, 1) for _ in range(1000)]).to_wire()
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                Sketch.from_wire(data[:length])

"""Slices of time: overlaid, packed, and found again."""

from __future__ import annotations

import random
from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from blocks import least_growth
from implementations import needs_core, pure
from trackside.handlers.models.goodput._buckets import (
    FAILED,
    FIRST,
    INSIDE,
    KIND_SHIFT,
    SAVE,
    STEP_CODE,
    WASTED,
    WHOLE_STEP,
)
from trackside.handlers.models.goodput._packed import (
    Block,
    Lengths,
    SliceSums,
    _alike,
    _pack,
    _pack_slices,
    _unpack,
    steps_of,
)
from trackside.handlers.models.goodput._track import BLOCK, Track, joined, mark_redone, overlay, overlay_step

pytestmark = pytest.mark.once

LOADING = 7 << KIND_SHIFT
PURE = pure("trackside.handlers.models.goodput._packed")
SAVING = SAVE << KIND_SHIFT
STEP = STEP_CODE | FIRST


def overlaid(*slices):
    return list(slices)


def columns(slices):
    return list(zip(*slices, strict=True))


class TestPack:
    @pytest.mark.parametrize(
        "numbers", [[0], [5, 5, 5], [0, 255], [0, 256], [1 << 62, (1 << 62) + 3], [-7, 9], list(range(1_000))]
    )
    def test_round_trip(self, numbers):
        """Packed numbers are unpacked unchanged."""
        least, planes = _pack(numbers)
        assert _unpack(least, planes, len(numbers)) == numbers

    @pytest.mark.parametrize(("numbers", "width"), [([9, 9], 0), ([9, 264], 1), ([9, 265], 2), ([0, 1 << 40], 6)])
    def test_width(self, numbers, width):
        """A number takes the bytes that the greatest difference needs."""
        assert len(_pack(numbers)[1]) == width * len(numbers)


def arrays(slices):
    """Return the columns of *slices* as a track has them."""
    return [array(kind, column) for kind, column in zip("qqIq", zip(*slices, strict=True), strict=True)]


CODES = [STEP, STEP | WASTED, STEP | FAILED, STEP_CODE, STEP_CODE | WASTED, LOADING, LOADING | INSIDE, SAVING]


@st.composite
def packable(draw):
    """Return slices, often of steps that are alike, with gaps, numbers and times of any size."""
    part = st.tuples(
        st.sampled_from([0, 0, 0, 5, 1 << 40]), st.integers(1, 300) | st.integers(1, 1 << 61), st.sampled_from(CODES)
    )
    shape = draw(st.lists(part, min_size=1, max_size=5))
    at, number, slices = (
        draw(st.sampled_from([0, 10**18, (1 << 63) - 2000])),
        draw(st.integers(-(2**63), 2**63 - 1)),
        [],
    )
    for _ in range(draw(st.integers(1, 6))):
        shape = draw(st.just(shape) | st.lists(part, min_size=1, max_size=5))
        for gap, length, code in shape:
            number = number + 1 if code & FIRST else number
            slices.append((at + gap, at + gap + length, code, number if code & FIRST else 0))
            at += gap + length
    return [item for item in slices if max(item) < 1 << 63] or [(0, 1, STEP, 0)]


class TestPackSlices:
    @needs_core
    @given(packable(), st.integers(-1, 2**63 - 1))
    @example([(0, 5, STEP, 1), (6, 9, STEP_CODE, 0), (9, 12, STEP, 2), (13, 14, STEP_CODE, 0)], -1)
    @example([(0, 5, STEP, 1), (5, 9, STEP_CODE, 0), (11, 12, STEP, 2), (12, 14, STEP_CODE, 0)], -1)
    def test_compiled(self, slices, last_step):
        """In C, slices are summed up and packed exactly as in Python."""
        assert _pack_slices(*arrays(slices), last_step) == PURE._pack_slices(*arrays(slices), last_step)

    def test_by_hand(self):
        """Two steps of three slices each: the sums, the steps' own times, and one byte for what differs."""
        slices = [
            (100, 110, STEP, 7),
            (110, 140, LOADING | INSIDE, 0),
            (140, 200, STEP_CODE, 0),
            (205, 216, STEP, 8),
            (216, 246, LOADING | INSIDE, 0),
            (246, 300, STEP_CODE, 0),
        ]
        sums, nets, wasted, base, last_step, shape, data = _pack_slices(*arrays(slices), -1)
        assert sums == {STEP_CODE: 10 + 60 + 11 + 54, LOADING | INSIDE: 60}
        assert (nets, wasted, base, last_step) == ([70, 65], [], 6, 8)
        # Gaps of 0 and 5, lengths of 10 and 11, of 30 twice, of 60 and 54; the codes; distances of 1.
        codes = (STEP, 0, LOADING | INSIDE, 0, STEP_CODE, 0)
        assert shape == (0, 1, 0, 0, 0, 0, 10, 1, 30, 0, 54, 1, *codes, 1, 0, 1, 0, 1, 0)
        assert data == bytes([0, 5, 0, 1, 6, 0])

    @needs_core
    def test_leaks_nothing(self):
        """Packing in C, or refusing to, keeps no reference."""
        usual = arrays([(at, at + 3, STEP | (at % 9 == 0) * WASTED, at) for at in range(0, 300, 3)])
        far = arrays([(-(2**62), 2**62, STEP, 1), (2**62, 2**62 + 1, LOADING, 0)])

        def run():
            for columns_of in (usual, far):
                _pack_slices(*columns_of, -1)

        assert least_growth(run) < 10


class TestBlock:
    def random_slices(self, rng, count):
        """Return some slices."""
        at, number, slices = 10**18, 100, []
        for _ in range(count):
            start = at + rng.choice((0, 0, rng.randrange(1, 10**6)))
            at = start + rng.randrange(1, 10**9)
            if rng.random() < 0.6:
                number += rng.choice((1, 1, 1, 10, -30))
                slices.append((start, at, STEP | rng.choice((0, WASTED)), number))
            else:
                slices.append((start, at, rng.choice((LOADING, SAVING, LOADING | INSIDE)), 0))
        return slices

    @pytest.mark.parametrize("count", [1, 2, 512])
    def test_round_trip(self, rng, count):
        """Packed slices are unpacked unchanged, also from a dump."""
        slices = self.random_slices(rng, count)
        block, slice_sums = Block.of(columns(slices), -1)
        assert block.slices() == slices
        assert (block.start, block.end) == (slices[0][0], slices[-1][1])
        loaded, other = Block.load(block.dump())
        assert (loaded.slices(), loaded.sums, loaded.samples) == (slices, block.sums, block.samples)
        assert (other.sums, other.nets) == (slice_sums.sums, slice_sums.nets)

    def test_steps_alone(self):
        """Consecutive steps take memory for the differences of their lengths, and little else."""
        rng, at, slices = random.Random(1), 10**18, []
        for step in range(512):
            at, start = at + 3 * 10**8 + rng.randrange(1 << 16), at
            slices.append((start, at, STEP, step))
        assert len(Block.of(columns(slices), -1)[0].data) == 2 * 512

    def test_steps_with_a_load(self):
        """Each part of a step takes memory for the differences of its own lengths: 7 bytes for the three parts here."""
        rng, at, slices = random.Random(1), 10**18, []
        for step in range(170):
            start = at + rng.randrange(1 << 8, 1 << 16)
            loading, loaded = start + 3000, start + 3000 + rng.randrange(1 << 8, 1 << 16)
            at = loaded + rng.randrange(1 << 16, 1 << 24)
            slices.append((start, loading, WHOLE_STEP, step))
            slices.append((loading, loaded, LOADING | INSIDE, 0))
            slices.append((loaded, at, STEP_CODE, 0))
        assert len(Block.of(columns(slices), -1)[0].data) == (2 + 2 + 3) * 170

    def test_last_step(self):
        """The last step that counts is the last that was not done again; without one it is that of the block before."""
        assert Block.of(columns([(0, 1, STEP, 5), (1, 2, STEP | WASTED, 6)]), -1)[0].last_step == 5
        assert Block.of(columns([(0, 1, LOADING, 0)]), 7)[0].last_step == 7

    @pytest.mark.parametrize("seed", range(300))
    def test_alike(self, seed):
        """Slices with recurring codes have the same sums as one by one."""
        rng = random.Random(seed)
        codes = [
            STEP,
            STEP,
            STEP_CODE,
            LOADING | INSIDE,
            LOADING,
            STEP | WASTED,
            STEP | FAILED,
            LOADING | INSIDE | FIRST,
        ]
        shape = rng.choices(codes, k=rng.choice([1, 2, 3, 3, 3, 4]))
        at, slices = 1_000, []
        for index in range(len(shape) * rng.choice([1, 2, 7]) + rng.choice([0, 0, 0, 1])):
            start = at + (rng.random() < seed % 3 * 0.05)
            at, code = start + rng.randrange(1, 9), shape[index % len(shape)]
            slices.append((start, at, code, 3 * index if code & FIRST else 0))
        block, slice_sums = Block.of(columns(slices), 7)
        expected, numbers = (
            SliceSums(slices),
            [number for _, _, code, number in slices if code & FIRST and not code & WASTED],
        )
        assert (slice_sums.sums, slice_sums.nets, slice_sums.wasted) == (expected.sums, expected.nets, expected.wasted)
        assert block.slices() == Block.load(block.dump())[0].slices() == slices
        assert block.last_step == (numbers[-1] if numbers else 7)

    def test_alike_at_a_glance(self):
        """
        Steps with one loading each are packed alike, wherever a block of them begins; with a gap inside they are not.
        """
        shape = [LOADING, STEP, LOADING | INSIDE, STEP_CODE, SAVING]
        assert _alike([0] * 20, shape * 4) == (5, 1, 4)
        assert _alike([0] * 15 + [0, 9, 0, 0, 9], shape * 4) == (5, 1, 4)
        assert _alike([0] * 15 + [0, 0, 0, 9, 0], shape * 4) is None


class TestSliceSums:
    def test_sums(self):
        """Lengths add up by code; whether a step begins makes no difference."""
        slice_sums = SliceSums(
            [(0, 4, STEP, 1), (4, 6, LOADING | INSIDE, 0), (6, 9, STEP_CODE, 0), (9, 10, LOADING, 0)]
        )
        assert slice_sums.sums == {STEP_CODE: 7, LOADING | INSIDE: 2, LOADING: 1}

    def test_nets(self):
        """A step's own time is its time without nested slices; a step without own time is no sample."""
        slices = [
            (0, 4, STEP, 1),
            (4, 6, LOADING | INSIDE, 0),
            (6, 9, STEP_CODE, 0),
            (9, 10, LOADING | FIRST | INSIDE, 2),
        ]
        assert SliceSums(slices).nets == [7]

    def test_in_portions(self, rng):
        """Slices added in portions have the same sums as slices added at once."""
        slices = TestBlock().random_slices(rng, 200)
        portions = SliceSums()
        for place in range(0, 200, 3):
            portions.add(slices[place : place + 3])
        whole = SliceSums(slices)
        assert (portions.sums, portions.nets, portions.wasted) == (whole.sums, whole.nets, whole.wasted)

    def test_counted_in_portions(self, rng):
        """Lengths that are counted now and then are those of all steps, including one that may go on."""
        slice_sums, at = SliceSums(), 0
        for number in range(40):
            length = rng.randrange(1, 9)
            wasted = WASTED if rng.random() < 0.3 else 0
            slice_sums.add([(at, at + length, STEP_CODE | FIRST | wasted, number)])
            at += length
            if rng.random() < 0.4:
                expected, expected_wasted, lengths, lost = Lengths(), Lengths(), Lengths(), Lengths()
                expected.add(slice_sums.nets)
                expected_wasted.add(slice_sums.wasted)
                slice_sums.count_into(lengths, lost)
                assert (lengths.ordered(), lost.ordered()) == (expected.ordered(), expected_wasted.ordered())

    def test_steps(self):
        """A step is its first slice and those that follow without a gap."""
        slices = [(0, 4, STEP, 1), (4, 6, LOADING | INSIDE, 0), (7, 9, STEP_CODE, 0), (9, 10, STEP, 2)]
        assert list(steps_of(slices)) == [slices[:2], slices[3:]]


class TestOverlay:
    def test_free(self):
        """A span has its time in the empty parts of the track."""
        slices = overlaid((0, 2, LOADING, 0), (6, 8, LOADING, 0))
        overlay(slices, 3, 5, SAVING)
        assert slices == [(0, 2, LOADING, 0), (3, 5, SAVING, 0), (6, 8, LOADING, 0)]

    def test_higher(self):
        """A slice of higher priority replaces the part that it covers."""
        slices = overlaid((0, 10, LOADING, 0))
        overlay(slices, 3, 5, SAVING)
        assert slices == [(0, 3, LOADING, 0), (3, 5, SAVING, 0), (5, 10, LOADING, 0)]

    def test_lower(self):
        """A slice of lower priority gets the remaining gaps."""
        slices = overlaid((3, 5, SAVING, 0))
        overlay(slices, 0, 10, LOADING)
        assert slices == [(0, 3, LOADING, 0), (3, 5, SAVING, 0), (5, 10, LOADING, 0)]

    def test_equal(self):
        """Of slices with equal priority the first one stays."""
        first, second = 16 << KIND_SHIFT, 17 << KIND_SHIFT
        slices = overlaid((3, 5, second, 0))
        overlay(slices, 0, 10, first)
        assert slices == [(0, 3, first, 0), (3, 5, second, 0), (5, 10, first, 0)]

    def test_within_a_step(self):
        """A slice over the beginning of a step leaves it the step's beginning."""
        slices = overlaid((0, 10, STEP, 4))
        overlay(slices, 0, 3, LOADING)
        assert slices == [(0, 3, LOADING | FIRST | INSIDE, 4), (3, 10, STEP_CODE, 0)]

    def test_amid_a_step(self):
        """A slice over the middle of a step leaves it one step."""
        slices = overlaid((0, 10, STEP, 4))
        overlay(slices, 3, 5, LOADING)
        assert slices == [(0, 3, STEP, 4), (3, 5, LOADING | INSIDE, 0), (5, 10, STEP_CODE, 0)]

    def test_step_around(self):
        """A step that ends around other slices contains them."""
        slices = overlaid((0, 3, LOADING, 0))
        assert overlay_step(slices, 0, 10, 4, 0)
        assert slices == [(0, 3, LOADING | FIRST | INSIDE, 4), (3, 10, STEP_CODE, 0)]

    def test_step_over_a_step(self):
        """A step gets no time that another one has."""
        slices = overlaid((2, 8, STEP, 4))
        assert overlay_step(slices, 0, 10, 3, 0)
        assert slices == [(0, 2, STEP, 3), (2, 8, STEP, 4), (8, 10, STEP_CODE, 0)]
        assert not overlay_step(slices, 2, 8, 5, 0)

    def test_wasted(self):
        """The parts of steps from some moment on can be marked as done again."""
        slices = [(0, 2, STEP, 1), (2, 3, LOADING, 0), (3, 5, STEP, 2)]
        assert mark_redone(slices, 2) == [(0, 2, STEP, 1), (2, 3, LOADING, 0), (3, 5, STEP | WASTED, 2)]

    def test_joined(self):
        """Equal neighbours become one, but a step stays a step."""
        slices = [(0, 2, LOADING, 0), (2, 3, LOADING, 0), (3, 5, STEP, 2), (5, 6, STEP_CODE, 0), (6, 7, STEP, 3)]
        assert joined(slices) == [(0, 3, LOADING, 0), (3, 6, STEP, 2), (6, 7, STEP, 3)]


class TestTrack:
    @pytest.fixture
    def long(self):
        """Give a track of many steps of 10 ns, every third followed by 5 ns of saving."""
        track, at = Track(), 1_000
        for step in range(4 * BLOCK):
            track.append_step(step, at, at := at + 10)
            if step % 3 == 0:
                track.add(at, at := at + 5, SAVING)
        return track

    @pytest.mark.parametrize("place", [0, 1, 2, 3, 1_500, 4 * BLOCK - 1])
    def test_time_of(self, long, place):
        """The beginning of a step is found in any block."""
        assert long.time_of(place) == 1_000 + 10 * place + 5 * ((place + 2) // 3)

    def test_time_of_none(self, long):
        """A step that never began has no beginning."""
        assert long.time_of(4 * BLOCK) is None

    def test_until(self, long, rng):
        """The last step at any moment is that of the slices before it."""
        slices = list(long._slices_from())
        for moment in [0, 1_000, 10**6, *(rng.randrange(1_000, long.top) for _ in range(50))]:
            expected = SliceSums([(s, min(e, moment), code, n) for s, e, code, n in slices if s < moment])
            assert long.until(moment) == (expected.sums, len(expected.nets))

    def test_changed_past(self, long):
        """A late slice is put where it belongs, and all others stay."""
        before = list(long._slices_from())
        place = next(place for place in range(100, 200) if before[place][2] == SAVING)
        long.add(before[place][0], before[place][1], LOADING)
        assert list(long._slices_from()) == before
        long.add(before[place - 1][0], before[place + 1][1], SAVING)
        changed = list(long._slices_from())
        step = SAVING | FIRST | INSIDE
        first, second = ((s, e, step, n) for s, e, _, n in (before[place - 1], before[place + 1]))
        assert changed == [*before[: place - 1], first, before[place], second, *before[place + 2 :]]

    def test_loaded(self, long):
        """A dumped and loaded track is the same."""
        other = Track.load(long.dump())
        assert list(other._slices_from()) == list(long._slices_from())
        assert (other.until(other.top), other.dump()) == (long.until(long.top), long.dump())

    def test_a_step_is_never_cut(self):
        """A step with more inside than a block holds is packed whole, once another one has begun."""
        track = Track()
        for load in range(3 * BLOCK):
            track.add(10 * load, 10 * load + 5, LOADING)
        track.add_step(0, 0, 30 * BLOCK)
        track.add_step(1, 30 * BLOCK, 30 * BLOCK + 10)
        assert [step.__len__() for step in track.steps_from(0)] == [6 * BLOCK, 1]
        assert track.until(track.top)[1] == 2

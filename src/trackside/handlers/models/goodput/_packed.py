"""
The past of a process in compact form: blocks of slices, and counts of steps by their length.

A slice is (start, end, code, step number); slices are disjoint and in order. Steps are much alike: they have the same
parts, and the numbers of one part differ little. So a column is stored part by part, each as its least number, and the
differences from it in as many bytes as the greatest needs.

Many lengths are counted in buckets, 128 to a doubling, so a percentile is known within 0.4 %; each bucket keeps the
sum of its lengths, so a mean is exact.
"""

from __future__ import annotations

import operator
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter, sub
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from trackside._implementation import native
from trackside.handlers.models.goodput._buckets import (
    FAILED,
    FIRST,
    INSIDE,
    KIND_SHIFT,
    NO_STEP,
    STEP,
    STEP_CODE,
    UNSAMPLED,
    WASTED,
    WHOLE_STEP,
    add,
    subtract,
)

MOST_EXACT: Final = 4096
"""The most steps of a session for which each length is counted by itself."""
_BITS: Final = 7


def _bucket(length: int) -> int:
    shift = max(0, length.bit_length() - _BITS - 1)
    return (shift << _BITS) + (length >> shift)


def _upper(bucket: int) -> int:
    """Return the greatest length in *bucket*."""
    shift = max(0, (bucket >> _BITS) - 1)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1


class Lengths:
    """Counts of lengths, in whole nanoseconds from 1."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[int, int]] = {}
        self.count = 0
        self.total = 0

    @classmethod
    def each(cls, lengths: Iterable[int]) -> Lengths:
        """Return counts of *lengths* with a bucket for each of them: they are exact, but must not be merged."""
        exact = cls()
        exact._buckets = {length: (n, n * length) for length, n in Counter(lengths).items()}
        exact.count = sum(n for n, _ in exact._buckets.values())
        exact.total = sum(total for _, total in exact._buckets.values())
        return exact

    def add(self, lengths: Sequence[int], sign: int = 1) -> None:
        """Count *lengths*."""
        if not lengths:
            return
        ordered = sorted(lengths)
        place = 0
        while place < len(ordered):
            # The steps of a job are much alike, so they are counted by bucket and not one by one.
            bucket = _bucket(ordered[place])
            end = bisect_right(ordered, _upper(bucket), lo=place)
            self._put(bucket, sign * (end - place), sign * sum(ordered[place:end]))
            place = end

    def remove(self, lengths: Sequence[int]) -> None:
        """Remove *lengths*, which were counted before."""
        self.add(lengths, sign=-1)

    def merge(self, other: Lengths, sign: int = 1) -> None:
        """Add the counts of *other*, or remove them if *sign* is -1."""
        for bucket, (count, total) in other._buckets.items():
            self._put(bucket, sign * count, sign * total)

    def _put(self, bucket: int, count: int, total: int) -> None:
        before, sum_before = self._buckets.get(bucket, (0, 0))
        if before + count:
            self._buckets[bucket] = (before + count, sum_before + total)
        else:
            self._buckets.pop(bucket, None)
        self.count += count
        self.total += total

    def copy(self) -> Lengths:
        """Return a copy of the counts."""
        copy = Lengths()
        copy._buckets.update(self._buckets)
        copy.count, copy.total = self.count, self.total
        return copy

    def ordered(self) -> list[tuple[float, int]]:
        """Return the mean length and the count of each bucket, the shortest first."""
        return [(total / count, count) for _, (count, total) in sorted(self._buckets.items())]

    def beyond(self, limit: int) -> int:
        """Return the total by which the lengths exceed *limit*."""
        return sum(max(0, total - count * limit) for count, total in self._buckets.values())


Slice: TypeAlias = "tuple[int, int, int, int]"
"""Start and end in ns, code, and the step's number where a step begins (else 0)."""

Columns: TypeAlias = "Sequence[Sequence[int]]"
"""Starts, ends, codes and numbers of some slices."""

_WORD: Final = 8
_COLUMNS: Final = 4
_MOST_SLICES: Final = 1 << 24
"""Far more than a block has, even with a step of a million slices; a block with more is refused."""
_KIND_AND_QUALITY: Final = -1 << KIND_SHIFT | FAILED | UNSAMPLED
_OWN_TIME: Final = STEP << KIND_SHIFT
"""The code of a step's own time under `_KIND_AND_QUALITY`, if the step counts as a sample."""


class AlikeSteps(NamedTuple):
    """The common pattern of steps: each has *period* slices, of which those from *first* to *last* are in the step."""

    period: int
    """The number of slices until the same codes come again."""
    first: int
    """The index of the step's first slice among them."""
    last: int
    """The index after the step's last slice."""


class SliceSums:
    """The sums of some slices."""

    __slots__ = ("_counted", "_lost", "_net", "_nets", "_step_end", "_wasted", "sums")

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        self.sums: dict[int, int] = {}
        """Nanoseconds by code without `FIRST`."""
        self._nets: list[int] = []
        self._wasted: list[int] = []
        self._counted: tuple[Lengths, Lengths] | None = None
        """The steps that were counted for `count_into`, and those of them that were done again."""
        # These three describe the step that may continue.
        self._net = self._lost = self._step_end = 0
        self.add(slices)

    @classmethod
    def of(cls, sums: dict[int, int], nets: list[int], wasted: list[int]) -> SliceSums:
        """Return these sums, of slices that nothing follows."""
        summed = cls()
        summed.sums, summed._nets, summed._wasted = sums, nets, wasted
        return summed

    def add(self, slices: Iterable[Slice]) -> None:
        """Add *slices*, which follow those added before."""
        sums, nets, net, lost, step_end = self.sums, self._nets, self._net, self._lost, self._step_end
        whole_steps = 0
        for start, end, code, _ in slices:
            if code == WHOLE_STEP and not lost:  # most slices are
                if net:
                    nets.append(net)
                step_end = end
                net = end - start
                whole_steps += net
                continue
            length = end - start
            if code & FIRST:
                if net:
                    nets.append(net)
                    if lost:
                        self._wasted.append(net)
                net, lost, step_end, is_of_step = 0, code & WASTED, end, True
            else:
                is_of_step = start == step_end and code & INSIDE != 0
                step_end = end if is_of_step else step_end
            key = code & ~FIRST
            sums[key] = sums.get(key, 0) + length
            if is_of_step and code & _KIND_AND_QUALITY == _OWN_TIME:
                net += length
        if whole_steps:
            sums[STEP_CODE] = sums.get(STEP_CODE, 0) + whole_steps
        self._net, self._lost, self._step_end = net, lost, step_end

    def add_whole_steps(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Add slices from *starts* to *ends*, each of which is a whole step, with the result of `add`."""
        lengths = list(map(sub, ends, starts))
        if not lengths:
            return
        self.sums[STEP_CODE] = self.sums.get(STEP_CODE, 0) + sum(lengths)
        self._nets, self._wasted = self.nets, self.wasted
        self._net, self._lost, self._step_end = lengths.pop(), 0, ends[-1]
        self._nets += lengths

    def add_alike(self, lengths: Sequence[int], codes: Sequence[int], steps: AlikeSteps) -> None:
        """Add slices of these *lengths* and *codes* that are *steps*, with the result of `add`; nothing came before."""
        period, first, last = steps
        for place, code in enumerate(codes[:period]):
            key = code & ~FIRST
            self.sums[key] = self.sums.get(key, 0) + sum(lengths[place::period])
        own = [lengths[at::period] for at in range(first, last) if codes[at] & _KIND_AND_QUALITY == _OWN_TIME]
        if own:
            self._nets.extend(own[0] if len(own) == 1 else map(sum, zip(*own, strict=True)))

    @property
    def nets(self) -> list[int]:
        """The own time, in ns, of each step that counts as a sample; none is zero."""
        return [*self._nets, self._net] if self._net else self._nets

    @property
    def wasted(self) -> list[int]:
        """Those of `nets` whose steps the process did again."""
        return [*self._wasted, self._net] if self._net and self._lost else self._wasted

    def count_into(self, lengths: Lengths, wasted: Lengths) -> None:
        """Count `nets` and `wasted`; those of the last call are added as counts, not one by one."""
        if self._counted is None:
            self._counted = Lengths(), Lengths()
        for counted, nets, total in zip(self._counted, (self._nets, self._wasted), (lengths, wasted), strict=True):
            counted.add(nets[counted.count :])
            total.merge(counted)
        if self._net:
            lengths.add([self._net])
            wasted.add([self._net] if self._lost else [])


def steps_of(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Yield the slices of each step: its first slice, and those of it that follow without a gap."""
    step: list[Slice] = []
    for item in slices:
        if step and (item[2] & (FIRST | INSIDE) != INSIDE or item[0] != step[-1][1]):
            yield step
            step = []
        if step or item[2] & FIRST:
            step.append(item)
    if step:
        yield step


@attrs.frozen(eq=False)
class Block:
    """A packed sequence of slices. No step lies in two blocks."""

    start: int
    end: int
    count: int
    sums: dict[int, int]
    """Nanoseconds by code without `FIRST`."""
    samples: int
    """Steps with time of their own."""
    last_step: int
    """The number of the last step up to here that was not done again; -1 for none."""
    base: int
    """The value from which the steps' distances start."""
    shape: tuple[int, ...]
    """For each column and part of a step, the least number, and the number of bytes for each difference from it."""
    data: bytes
    """
    The columns: gaps before slices, lengths, codes, and the difference of each step's number from the previous one.

    Each is stored part by part.
    """

    @classmethod
    def of(cls, columns: Columns, last_step: int) -> tuple[Block, SliceSums]:
        """
        Pack slices.

        Args:
            columns: Their starts, ends, codes and numbers; at least one.
            last_step: The last step of the block before.

        Returns:
            The block, and its sums.
        """
        starts, ends, codes, numbers = columns
        sums, nets, wasted, base, last_step, shape, data = _pack_slices(starts, ends, codes, numbers, last_step)
        block = cls(starts[0], ends[-1], len(starts), sums, len(nets), last_step, base, shape, data)
        return block, SliceSums.of(sums, nets, wasted)

    def slices(self) -> list[Slice]:
        """Unpack the slices."""
        gaps, lengths, codes, distances = self._columns()
        found: list[Slice] = []
        at, number = self.start, self.base
        for gap, length, code, distance in zip(gaps, lengths, codes, distances, strict=True):
            start = at + gap
            at = start + length
            if code & FIRST:
                number += distance
                found.append((start, at, code, number))
            else:
                found.append((start, at, code, 0))
        return found

    def _columns(self) -> Iterator[Sequence[int]]:
        parts = list(zip(self.shape[::2], self.shape[1::2], strict=True))
        period = len(parts) // _COLUMNS
        each, place = self.count // period, 0
        for first in range(0, len(parts), period):
            column = [0] * self.count
            for part, (least, width) in enumerate(parts[first : first + period]):
                end = place + width * each
                column[part::period] = _unpack(least, self.data[place:end], each)
                place = end
            yield column

    def dump(self) -> list[Any]:
        """Return the block as plain data."""
        return [self.start, self.count, self.last_step, self.base, list(self.shape), self.data]

    @classmethod
    def load(cls, data: Sequence[Any]) -> tuple[Block, SliceSums]:
        """
        Return the block that `dump` wrote, and its sums.

        Raises:
            ValueError: if *data* is anything else; values of other types may raise other exceptions.
        """
        start, count, last_step, base = map(operator.index, data[:4])
        given, planes = data[4:]
        shape = tuple(map(operator.index, given))
        period, rest = divmod(len(shape), 2 * _COLUMNS)
        if rest or not 0 < period <= count <= _MOST_SLICES or count % period:
            raise ValueError("a block of an impossible shape")
        leasts, widths = shape[::2], shape[1::2]
        if min(widths) < 0 or max(widths) > _WORD:
            raise ValueError("a block of an impossible shape")
        if not isinstance(planes, bytes) or len(planes) != sum(widths) * (count // period):
            raise ValueError("a block of another size than it says")
        gap, length, code, _ = (min(leasts[place : place + period]) for place in range(0, len(leasts), period))
        if min(start, gap, code) < 0 or length < 1:
            raise ValueError("a block whose slices are out of order")
        block = cls(start, start, count, {}, 0, last_step, base, shape, planes)
        slices = block.slices()
        summed = SliceSums(slices)
        return attrs.evolve(block, end=slices[-1][1], sums=summed.sums, samples=len(summed.nets)), summed


def _pack_slices(
    starts: Sequence[int], ends: Sequence[int], codes: Sequence[int], numbers: Sequence[int], last_step: int
) -> tuple[dict[int, int], list[int], list[int], int, int, tuple[int, ...], bytes]:
    """Return the `sums`, `nets` and `wasted` of slices, and the last four attributes of the `Block` with them."""
    starts, ends, codes, numbers = list(starts), list(ends), list(codes), list(numbers)  # read sooner than arrays
    lengths = list(map(sub, ends, starts))
    gaps = [0, *map(sub, starts[1:], ends)]
    steps = _alike(gaps, codes)
    if steps is not None:
        summed = SliceSums()
        summed.add_alike(lengths, codes, steps)
        base, last_step, distances = _distances_alike(numbers, steps)
    else:
        summed = SliceSums(zip(starts, ends, codes, numbers, strict=True))
        base, last_step, distances = _distances(codes, numbers, last_step)
    period = 1 if steps is None else steps.period
    each = len(starts) // period
    packed = [_pack(column[part::period]) for column in (gaps, lengths, codes, distances) for part in range(period)]
    shape = tuple(number for least, planes in packed for number in (least, len(planes) // each))
    return summed.sums, summed.nets, summed.wasted, base, last_step, shape, b"".join(planes for _, planes in packed)


if native is not None:
    _pack_slices = native.compile_packing(_pack_slices, (FIRST, INSIDE, WASTED, ~_KIND_AND_QUALITY, _OWN_TIME))


def _pack(numbers: Sequence[int]) -> tuple[int, bytes]:
    """
    Return the least of *numbers*, and the bytes of the differences from it.

    The lowest bytes of all differences come first, then the next bytes, and so on, up to the highest byte in use.
    """
    least = min(numbers)
    width = ((max(numbers) - least).bit_length() + 7) // 8
    if not width:
        return least, b""
    words = array("Q", [number - least for number in numbers] if least else numbers)
    if sys.byteorder == "big":
        words.byteswap()
    data = words.tobytes()
    return least, b"".join(data[place::_WORD] for place in range(width))


def _unpack(least: int, planes: bytes, count: int) -> list[int]:
    if not planes:
        return [least] * count
    data = bytearray(_WORD * count)
    for place in range(len(planes) // count):
        data[place::_WORD] = planes[place * count : (place + 1) * count]
    words = array("Q", bytes(data))
    if sys.byteorder == "big":
        words.byteswap()
    return [word + least for word in words] if least else words.tolist()


def _distances(codes: Sequence[int], numbers: Sequence[int], last_step: int) -> tuple[int, int, list[int]]:
    """Return the base, the last step that counts, and the distances of the steps that begin in slices."""
    begins = list(map(FIRST.__and__, codes))
    given = list(compress(numbers, begins))
    if not given:
        return 0, last_step, [1] * len(codes)
    backwards = zip(reversed(codes), reversed(numbers), strict=True)
    last_step = next((number for code, number in backwards if code & (FIRST | WASTED) == FIRST), last_step)
    distance = iter([1, *map(sub, given[1:], given)])
    return given[0] - 1, last_step, [next(distance) if is_first else 1 for is_first in begins]


def _alike(gaps: Sequence[int], codes: Sequence[int]) -> AlikeSteps | None:
    """Return the common pattern of the steps; None if there is none, or the steps were done again."""
    period = codes.index(codes[0], 1) if codes.count(codes[0]) > 1 else 0
    if not period or len(codes) % period or codes[period:] != codes[:-period]:
        return None
    shape = codes[:period]
    first = next((place for place, code in enumerate(shape) if code & FIRST), period)
    last = next((place for place in range(first + 1, period) if not shape[place] & INSIDE), period)
    others = [*shape[:first], *shape[last:]]
    if first == period or shape[first] & WASTED or any(code & (FIRST | INSIDE) for code in others):
        return None
    if any(shape[place] & FIRST or any(gaps[place::period]) for place in range(first + 1, last)):
        return None
    return AlikeSteps(period, first, last)


def _distances_alike(numbers: Sequence[int], steps: AlikeSteps) -> tuple[int, int, list[int]]:
    """Return the result of `_distances` for *steps*."""
    given = numbers[steps.first :: steps.period]
    distances = [1] * len(numbers)
    distances[steps.first :: steps.period] = [1, *map(sub, given[1:], given)]
    return given[0] - 1, given[-1], distances


def whole_number(value: Any) -> int:
    """Return *value* as an int; a time that was recorded as 3.0 is 3."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return operator.index(value)


MARK: Final = 64
"""Blocks from one running total to the next."""

_end, _last_step = attrgetter("end"), attrgetter("last_step")


class Archive:
    """
    Blocks in order; their sums are known without unpacking them.

    Attributes:
        sums: Nanoseconds by code.
        samples: The number of steps with own time.
        first_nets: The own time of each of the first `MOST_EXACT` of these steps, and perhaps of a few more.
        lengths: The own times of these steps.
        wasted: The own times of those of them that the process did again.
    """

    __slots__ = ("_blocks", "_marks", "first_nets", "lengths", "samples", "sums", "wasted")

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._marks: list[tuple[dict[int, int], int]] = [({}, 0)]
        self.sums: dict[int, int] = {}
        self.samples = 0
        self.first_nets = array("q")
        self.lengths, self.wasted = Lengths(), Lengths()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def start(self) -> int:
        """The beginning of the first slice; 0 if there is none."""
        return self._blocks[0].start if self._blocks else 0

    @property
    def end(self) -> int:
        """The end of the last slice; 0 if there is none."""
        return self._blocks[-1].end if self._blocks else 0

    @property
    def last_step(self) -> int:
        """The number of the last step that counts; -1 for none."""
        return self._blocks[-1].last_step if self._blocks else NO_STEP

    def pack(self, columns: Columns) -> None:
        """Add one slice or more as a block."""
        self._keep(*Block.of(columns, self.last_step))

    def _keep(self, block: Block, summed: SliceSums) -> None:
        self._blocks.append(block)
        add(self.sums, summed.sums)
        if self.samples < MOST_EXACT:
            self.first_nets.extend(summed.nets)
        self.samples += block.samples
        self.lengths.add(summed.nets)
        self.wasted.add(summed.wasted)
        if len(self._blocks) % MARK == 0:
            self._marks.append(self.before(len(self._blocks)))

    def unpack(self) -> list[Slice]:
        """Remove the last block and return its slices."""
        if len(self._blocks) % MARK == 0:
            self._marks.pop()
        block = self._blocks.pop()
        slices = block.slices()
        summed = SliceSums(slices)
        subtract(self.sums, summed.sums)
        self.samples -= block.samples
        del self.first_nets[self.samples :]
        self.lengths.remove(summed.nets)
        self.wasted.remove(summed.wasted)
        return slices

    def before(self, place: int) -> tuple[dict[int, int], int]:
        """Return the nanoseconds by code and the number of samples in the blocks before the one at *place*."""
        mark = min(place // MARK, len(self._marks) - 1)
        sums, samples = dict(self._marks[mark][0]), self._marks[mark][1]
        for block in self._blocks[mark * MARK : place]:
            add(sums, block.sums)
            samples += block.samples
        return sums, samples

    def place_of(self, moment: int) -> int:
        """Return the index of the first block that ends after *moment*; the number of blocks if none does."""
        return bisect_right(self._blocks, moment, key=_end)

    def place_of_step(self, number: int, since: int) -> int:
        """Return the index of the first block that ends after *since* and has the step *number* or a later one."""
        return bisect_left(self._blocks, number, lo=self.place_of(since), key=_last_step)

    def slices(self, place: int) -> list[Slice]:
        """Return the slices of the block at *place*."""
        return self._blocks[place].slices()

    def slices_from(self, place: int) -> Iterator[Slice]:
        """Yield the slices of the block at *place* and of all after it."""
        for block in self._blocks[place:]:
            yield from block.slices()

    def dump(self) -> list[Any]:
        """Return the blocks as plain data."""
        return [block.dump() for block in self._blocks]

    @classmethod
    def load(cls, data: Sequence[Any]) -> Archive:
        """
        Return the archive that `dump` wrote.

        Raises:
            ValueError: if *data* is anything else; values of other types may raise other exceptions.
        """
        archive = cls()
        for item in data:
            block, summed = Block.load(item)
            if block.start < archive.end:
                raise ValueError("blocks out of order")
            archive._keep(block, summed)
        return archive

"""
Slices of time put away compactly.

A slice is (start, end, code, step number); slices are disjoint and in order. Most columns of a block hold numbers
that differ little, so each is kept as what it exceeds its least by, in as many bytes as the greatest needs.
"""

from __future__ import annotations

import operator
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import sub
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from trackside.handlers.models.goodput._buckets import FAILED, FIRST, INSIDE, KIND_SHIFT, STEP, UNSAMPLED, WASTED
from trackside.handlers.models.goodput._lengths import Lengths

Slice: TypeAlias = "tuple[int, int, int, int]"
"""Start and end in ns, code, and the step's number where a step begins (else 0)."""

Columns: TypeAlias = "Sequence[Sequence[int]]"
"""Starts, ends, codes and numbers of some slices."""

_WORD: Final = 8
_QUICKLY: Final = 1
_MOST_SLICES: Final = 1 << 24
"""Far more than a block has, a step with a million slices included; a block that says more is none."""
_KIND_AND_QUALITY: Final = -1 << KIND_SHIFT | FAILED | UNSAMPLED
_OWN_TIME: Final = STEP << KIND_SHIFT
"""What is left of the code of a step's own time by that mask, if the step counts as a sample."""
WHOLE_STEP: Final = STEP << KIND_SHIFT | INSIDE | FIRST
"""The code of a step with nothing in it, that neither failed nor was done again."""


class Alike(NamedTuple):
    """Steps that all look the same: so and so many slices each, which are the step's from a place to another."""

    period: int
    """Slices until the same codes come again."""
    first: int
    """The place of the step's first slice among them."""
    last: int
    """The place after the step's last one."""


class Tally:
    """What some slices add up to."""

    __slots__ = ("_counted", "_lost", "_net", "_nets", "_step_end", "_wasted", "sums")

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        self.sums: dict[int, int] = {}
        """Nanoseconds by code, `FIRST` aside."""
        self._nets: list[int] = []
        self._wasted: list[int] = []
        self._counted: tuple[Lengths, Lengths] | None = None
        """The steps that were counted for `count_into`, and those of them that were done again."""
        # Of the step that may go on.
        self._net = self._lost = self._step_end = 0
        self.add(slices)

    def add(self, slices: Iterable[Slice]) -> None:
        """Add *slices*, which follow those added before."""
        sums, net, step_end = self.sums, self._net, self._step_end
        for start, end, code, _ in slices:
            length = end - start
            key = code & ~FIRST
            sums[key] = sums.get(key, 0) + length
            if code & FIRST:
                if net:
                    self._keep(net)
                net, self._lost = 0, code & WASTED
            elif start != step_end or not code & INSIDE:
                continue  # it belongs to no step that begins here
            step_end = end
            if code & _KIND_AND_QUALITY == _OWN_TIME:
                net += length
        self._net, self._step_end = net, step_end

    def add_whole_steps(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Add what `add` would of slices from *starts* to *ends*, each of which is a whole step."""
        lengths = list(map(sub, ends, starts))
        if not lengths:
            return
        key = WHOLE_STEP & ~FIRST
        self.sums[key] = self.sums.get(key, 0) + sum(lengths)
        if self._net:
            self._keep(self._net)
        self._net, self._lost, self._step_end = lengths.pop(), 0, ends[-1]
        self._nets += lengths

    def _keep(self, net: int) -> None:
        self._nets.append(net)
        if self._lost:
            self._wasted.append(net)

    def add_alike(self, lengths: Sequence[int], codes: Sequence[int], steps: Alike) -> None:
        """Add what `add` would of slices of these *lengths* and *codes* that are *steps*, after nothing else."""
        period, first, last = steps
        for place, code in enumerate(codes[:period]):
            key = code & ~FIRST
            self.sums[key] = self.sums.get(key, 0) + sum(lengths[place::period])
        own = [lengths[at::period] for at in range(first, last) if codes[at] & _KIND_AND_QUALITY == _OWN_TIME]
        if own:
            self._nets.extend(own[0] if len(own) == 1 else map(sum, zip(*own, strict=True)))

    @property
    def nets(self) -> list[int]:
        """Of each step that counts as a sample, the time of its own, in ns; none is zero."""
        return [*self._nets, self._net] if self._net else self._nets

    @property
    def wasted(self) -> list[int]:
        """Those of `nets` whose steps the process did again."""
        return [*self._wasted, self._net] if self._net and self._lost else self._wasted

    def count_into(self, lengths: Lengths, wasted: Lengths) -> None:
        """Count `nets` and `wasted`; what was counted the last time is not counted one by one again."""
        if self._counted is None:
            self._counted = Lengths(), Lengths()
        for counted, nets, total in zip(self._counted, (self._nets, self._wasted), (lengths, wasted), strict=True):
            counted.add(nets[counted.count :])
            total.merge(counted)
        if self._net:
            lengths.add([self._net])
            wasted.add([self._net] if self._lost else [])


def steps_of(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Yield the slices of each step: the one with which it begins, and what follows without a gap."""
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
    """A run of slices, packed. No step lies in two blocks."""

    start: int
    end: int
    count: int
    sums: dict[int, int]
    """Nanoseconds by code, `FIRST` aside."""
    samples: int
    """Steps with time of their own."""
    last_step: int
    """The number of the last step up to here that was not done again; -1 for none."""
    base: int
    """What the steps' distances start from."""
    shape: tuple[tuple[int, int], ...]
    """Of each column its least number, and the bytes that the others need beyond it."""
    data: bytes
    """
    The columns: gaps before slices, lengths, codes, and by how much each step's number exceeds the one before.

    If they are fewer bytes than that makes, they are compressed.
    """

    @classmethod
    def of(cls, columns: Columns, last_step: int) -> tuple[Block, Tally]:
        """
        Pack slices.

        Args:
            columns: Their starts, ends, codes and numbers; at least one.
            last_step: That of the block before.

        Returns:
            The block, and what it adds up to.
        """
        starts, ends, codes, numbers = columns
        lengths = list(map(sub, ends, starts))
        gaps = [0, *map(sub, starts[1:], ends)]
        steps = _alike(gaps, codes)
        if steps is not None:
            tally = Tally()
            tally.add_alike(lengths, codes, steps)
            base, last_step, distances = _distances_alike(numbers, steps)
        else:
            slices = list(zip(*columns, strict=True))
            tally = Tally(slices)
            base, last_step, distances = _distances(slices, last_step)
        packed = [_pack(column) for column in (gaps, lengths, codes, distances)]
        data = b"".join(planes for _, planes in packed)
        shape = tuple((least, len(planes) // len(starts)) for least, planes in packed)
        if codes.count(WHOLE_STEP) < len(codes):
            # Where steps alternate with other slices, so do lengths and codes: there is something to gain.
            data = min(data, zlib.compress(data, _QUICKLY), key=len)
        block = cls(starts[0], ends[-1], len(starts), tally.sums, len(tally.nets), last_step, base, shape, data)
        return block, tally

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
        widths = [width for _, width in self.shape]
        size = self.count * sum(widths)
        data = self.data if len(self.data) == size else _inflated(self.data, size)
        place = 0
        for least, width in self.shape:
            end = place + width * self.count
            yield _unpack(least, data[place:end], self.count)
            place = end

    def dump(self) -> list[Any]:
        """Return the block as plain data."""
        return [self.start, self.count, self.last_step, self.base, [list(column) for column in self.shape], self.data]

    @classmethod
    def load(cls, data: Sequence[Any]) -> tuple[Block, Tally]:
        """
        Return the block that `dump` wrote, and what it adds up to.

        Raises:
            ValueError: if *data* is anything else; so may whatever comes of values of other types.
        """
        start, count, last_step, base = map(operator.index, data[:4])
        shape, planes = data[4:]
        columns = tuple((operator.index(least), operator.index(width)) for least, width in shape)
        (gap, _), (length, _), (code, _), _ = columns
        if not 0 < count <= _MOST_SLICES or any(not 0 <= width <= _WORD for _, width in columns):
            raise ValueError("a block of an impossible shape")
        if min(start, gap, code) < 0 or length < 1:
            raise ValueError("a block whose slices are out of order")
        block = cls(start, start, count, {}, 0, last_step, base, columns, planes)
        slices = block.slices()
        tally = Tally(slices)
        return attrs.evolve(block, end=slices[-1][1], sums=tally.sums, samples=len(tally.nets)), tally


def _inflated(data: bytes, size: int) -> bytes:
    """Return the *size* bytes that *data* was made of, and never more."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, size)
    except zlib.error as error:
        raise ValueError("a block that cannot be unpacked") from error
    if len(found) != size or inflater.unconsumed_tail:
        raise ValueError("a block of another size than it says")
    return found


def _pack(numbers: Sequence[int]) -> tuple[int, bytes]:
    """
    Return the least of *numbers*, and by what the others exceed it.

    That is the lowest bytes of all of them, then the next ones, and so on, as far as any has one.
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


def _distances(slices: Sequence[Slice], last_step: int) -> tuple[int, int, list[int]]:
    """Return the base, the last step that counts, and the distances of the steps that begin in *slices*."""
    base: int | None = None
    before = 0
    distances = []
    for _, _, code, number in slices:
        distance = 1
        if code & FIRST:
            if base is None:
                base = number - 1
            else:
                distance = number - before
            before = number
            if not code & WASTED:
                last_step = number
        distances.append(distance)
    return base or 0, last_step, distances


def _alike(gaps: Sequence[int], codes: Sequence[int]) -> Alike | None:
    """Return how slices are steps, each in the same way; None if they are not, or were done again."""
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
    return Alike(period, first, last)


def _distances_alike(numbers: Sequence[int], steps: Alike) -> tuple[int, int, list[int]]:
    """Return what `_distances` does of *steps*."""
    given = numbers[steps.first :: steps.period]
    distances = [1] * len(numbers)
    distances[steps.first :: steps.period] = [1, *map(sub, given[1:], given)]
    return given[0] - 1, given[-1], distances


def whole_number(value: Any) -> int:
    """Return *value* as an int; a time that was recorded as 3.0 is 3."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return operator.index(value)

"""The packed part of a track: blocks of slices, and what they add up to."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from trackside.handlers.models.goodput._block import Block, Columns, Slice, Tally
from trackside.handlers.models.goodput._buckets import add, subtract
from trackside.handlers.models.goodput._lengths import MOST_EXACT, Lengths

MARK: Final = 64
"""Blocks from one running total to the next."""
NO_STEP: Final = -1

_end, _last_step = attrgetter("end"), attrgetter("last_step")


class Archive:
    """
    Blocks in order; what they add up to is known without looking into them.

    Attributes:
        sums: Nanoseconds by code.
        samples: Steps with time of their own.
        first_nets: How long each of the first `MOST_EXACT` of those took, and perhaps of a few more.
        lengths: How long those took.
        wasted: How long those of them took that the process did again.
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
        """Where the first slice begins; 0 if there is none."""
        return self._blocks[0].start if self._blocks else 0

    @property
    def end(self) -> int:
        """Where the last slice ends; 0 if there is none."""
        return self._blocks[-1].end if self._blocks else 0

    @property
    def last_step(self) -> int:
        """The number of the last step that counts; -1 for none."""
        return self._blocks[-1].last_step if self._blocks else NO_STEP

    def pack(self, columns: Columns) -> None:
        """Add slices, of which there is at least one, as a block."""
        self._keep(*Block.of(columns, self.last_step))

    def _keep(self, block: Block, tally: Tally) -> None:
        self._blocks.append(block)
        add(self.sums, tally.sums)
        if self.samples < MOST_EXACT:
            self.first_nets.extend(tally.nets)
        self.samples += block.samples
        self.lengths.add(tally.nets)
        self.wasted.add(tally.wasted)
        if len(self._blocks) % MARK == 0:
            self._marks.append(self.before(len(self._blocks)))

    def unpack(self) -> list[Slice]:
        """Take off the last block and return its slices."""
        if len(self._blocks) % MARK == 0:
            self._marks.pop()
        block = self._blocks.pop()
        slices = block.slices()
        tally = Tally(slices)
        subtract(self.sums, tally.sums)
        self.samples -= block.samples
        del self.first_nets[self.samples :]
        self.lengths.remove(tally.nets)
        self.wasted.remove(tally.wasted)
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
        """Return the place of the first block that ends after *moment*; the number of blocks if none does."""
        return bisect_right(self._blocks, moment, key=_end)

    def place_of_step(self, number: int, since: int) -> int:
        """Return the place of the first block that ends after *since* and has the step *number* or a later one."""
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
            ValueError: if *data* is anything else; so may whatever comes of values of other types.
        """
        archive = cls()
        for item in data:
            block, tally = Block.load(item)
            if block.start < archive.end:
                raise ValueError("blocks out of order")
            archive._keep(block, tally)
        return archive

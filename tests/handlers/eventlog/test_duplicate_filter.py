"""Records in sequence, copies and sequels."""

from __future__ import annotations

import pytest

from trackside.handlers.eventlog import _scanner
from trackside.handlers.eventlog._format import Kind, Record
from trackside.handlers.eventlog._scanner import Damage, DuplicateFilter

SIZE = 100


class File:
    """Records of one size that are admitted one after the other."""

    def __init__(self):
        self.filter = DuplicateFilter()
        self.offset = 0

    def admit(self, *numbers, stream=0):
        """Return the numbers that become known, and the reasons against others."""
        known = []
        for number in numbers:
            record = Record(Kind.FRAME, number, b"", self.offset, self.offset + SIZE, stream)
            self.offset += SIZE
            known += self.filter.admit(record)
        return recorded(known)

    def release(self):
        """Return the records that were held back."""
        return recorded(self.filter.release())


def recorded(found):
    return [item.reason if isinstance(item, Damage) else item.sequence for item in found]


@pytest.fixture
def file():
    return File()


class TestDuplicateFilter:
    def test_in_turn(self, file):
        """Records that follow each other become known at once."""
        assert file.admit(0, 1, 2) == [0, 1, 2]

    def test_ahead(self, file):
        """A record that is ahead is held back, with those that follow it."""
        assert file.admit(0, 1, 5, 6) == [0, 1]
        assert file.release() == [5, 6]

    def test_lower_follows(self, file):
        """If a lower number follows, the record ahead was a copy."""
        assert file.admit(0, 1, 5, 6, 2) == [0, 1, "out of order", "out of order", 2]
        assert file.admit(3, 4, 5) == [3, 4, 5]

    def test_two_copies(self, file):
        """The same holds if two copies from different places stand there."""
        assert file.admit(0, 1, 90, 91, 50, 51, 2) == [0, 1, *["out of order"] * 4, 2]

    def test_gap_then_copy(self, file):
        """After a gap, the records that follow are distinguished from a copy within it."""
        known = file.admit(0, 1, 5, 6, 80, 7, 8)
        assert known == [0, 1, "out of order"]
        assert file.release() == [5, 6, 7, 8]

    def test_again(self, file):
        """A number that was read, or is held, is a duplicate."""
        assert file.admit(0, 1, 0, 5, 5, 1) == [0, 1, "duplicate", "duplicate", "duplicate"]

    def test_late(self, file):
        """A number that was skipped before is read late rather than never."""
        file.admit(0, 1, 5)
        assert file.release() == [5]
        assert file.admit(3, 6) == [3, 6]

    def test_later_start(self, file):
        """At the start of a file any number can be the first."""
        assert file.admit(70, 71) == [70, 71]

    def test_damaged_start(self, file):
        """After a damaged start, a lower number shows that the first was a copy."""
        file.offset = 50
        assert file.admit(70, 71, 3, 4) == ["out of order", "out of order"]
        assert file.release() == [3, 4]

    def test_bounded(self, file, monkeypatch):
        """No more than the bound is held back; beyond it the record counts as the sequel."""
        monkeypatch.setattr(_scanner, "_HELD_BYTES", 3 * SIZE)
        assert file.admit(0, 5, 6, 7) == [0]
        assert file.admit(8, 9) == [5, 6, 7, 8, 9]

    def test_streams(self, file):
        """Each writer's numbers are counted separately."""
        assert file.admit(0, 1) == [0, 1]
        assert file.admit(0, stream=7) == []
        assert file.admit(1, stream=7) == []
        assert file.admit(2) == [0, 1, 2]

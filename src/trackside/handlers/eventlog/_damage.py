"""What a reader says of bytes that it could not use."""

from __future__ import annotations

from typing import NamedTuple

TORN = "torn tail"
"""The file ends within a record: its writer was killed, or is still writing."""
DAMAGED = "damaged"
"""Bytes that are no record."""
DUPLICATE = "duplicate"
"""A record that was read before."""
MISPLACED = "misplaced"
"""A copy of a record whose own place is later in the file."""


class Damage(NamedTuple):
    """Bytes of a file that were passed over."""

    offset: int
    length_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"bytes {self.offset}-{self.offset + self.length_bytes - 1}: {self.reason}"


def unknown_version(version: int) -> str:
    """Return the reason for passing over a record of another *version*."""
    return f"unknown version {version}"


def joined(first: Damage, second: Damage) -> Damage | None:
    """Return both as one if *second* goes on where *first* ends, for the same reason."""
    if first.reason == second.reason and first.offset + first.length_bytes == second.offset:
        return Damage(first.offset, first.length_bytes + second.length_bytes, first.reason)
    return None


def undecodable(problem: str) -> str:
    """Return the reason for passing over a whole record whose payload is not what it should be."""
    return f"undecodable: {problem}"

"""Columns as bytes: little-endian on every machine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Final

_IS_LITTLE: Final = sys.byteorder == "little"


def packed(values: array[float]) -> bytes:
    """Return *values* as packed 64-bit floats, little-endian."""
    if _IS_LITTLE:
        return values.tobytes()
    swapped = values[:]
    swapped.byteswap()
    return swapped.tobytes()


def unpacked(data: bytes) -> array[float]:
    """Return the 64-bit floats packed in *data*."""
    values = array("d")
    values.frombytes(data)
    if not _IS_LITTLE:
        values.byteswap()
    return values


def packed_numbers(values: Iterable[int]) -> bytes:
    """Return *values* as packed unsigned 32-bit integers, little-endian."""
    numbers = array("I", values)
    if not _IS_LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def unpacked_numbers(data: bytes) -> list[int]:
    """Return the unsigned 32-bit integers packed in *data*."""
    numbers = array("I")
    numbers.frombytes(data)
    if not _IS_LITTLE:
        numbers.byteswap()
    return numbers.tolist()

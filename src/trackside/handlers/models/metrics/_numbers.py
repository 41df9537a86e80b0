"""Numbers as instruments give them: plain ones, scalars of NumPy and torch, or nothing of use."""

from __future__ import annotations

from typing import Any


def whole(given: Any, otherwise: int | None = None) -> int | None:
    """Return *given* as a whole number, or *otherwise* if it is none."""
    if type(given) is int:
        return given
    if given is None:
        return otherwise
    try:
        return int(given)
    except Exception:  # what is no number, NaN and the infinities among it, tells nothing
        return otherwise


def number(given: Any, otherwise: float | None = None) -> float | None:
    """Return *given* as a float, or *otherwise* if it is no number."""
    if type(given) is float:
        return given
    if given is None:
        return otherwise
    try:
        return float(given)
    except Exception:  # as above
        return otherwise


def product(one: int | None, other: int | None) -> int | None:
    """Return the product, or None if a factor is not known."""
    return None if one is None or other is None else one * other

"""Many numbers in few words."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(numbers: Iterable[int], *, most: int | None = None) -> str:
    """
    Return *numbers* in order and each once, as ``0-3, 7``.

    Args:
        numbers: Ranks, windows, steps.
        most: The number of ranges to show; an ellipsis stands for the rest. All unless given.
    """
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans[:most]]
    return ", ".join(shown) + (" …" if most is not None and len(spans) > most else "")

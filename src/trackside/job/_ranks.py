"""Sets of ranks, as a configuration names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from trackside.events import ConfigError

Ranks: TypeAlias = str | int | Collection[int] | Callable[[int], bool]
"""Some of a job's ranks: ``"all"``, ``"none"``, ``"0,8-15"``, ``"0-127/8"``, numbers, or a function of the rank."""

_PART: Final = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(/(?P<stride>[1-9]\d*))?)?")
_REMEDY: Final = 'give "all", "none", ranks as in "0,8-15" or "0-127/8", numbers, or a function of the rank'


def is_among(rank: int, ranks: Ranks, *, field: str = "ranks") -> bool:
    """
    Return whether *rank* is one of *ranks*.

    Args:
        rank: The global rank.
        ranks: Which are meant.
        field: What to call them in an error.

    Raises:
        ConfigError: if *ranks* says nothing of the kind.
    """
    if callable(ranks):
        return bool(ranks(rank))
    if isinstance(ranks, str):
        return any(rank in part for part in _parts(ranks, field))
    if _is_rank(ranks):
        return rank == ranks
    if isinstance(ranks, Collection) and all(map(_is_rank, ranks)):
        return rank in ranks
    raise ConfigError(field, ranks, _REMEDY)


def _parts(text: str, field: str) -> list[Collection[int]]:
    if text.strip() == "none":
        return []
    if text.strip() == "all":
        return [range(2**31)]
    parts: list[Collection[int]] = []
    for word in text.split(","):
        found = _PART.fullmatch(word.strip())
        if found is None:
            raise ConfigError(field, text, _REMEDY)
        first = int(found["first"])
        last = int(found["last"] or first)
        if last < first:
            raise ConfigError(field, text, f"{last} comes before {first}; {_REMEDY}")
        parts.append(range(first, last + 1, int(found["stride"] or 1)))
    return parts


def _is_rank(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0

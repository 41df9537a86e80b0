"""A bounded table of what a decoder remembers; the least recently used entries go first."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A table of bounded weight; what was not used for longest is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.weight = 0
        self._capacity = capacity
        self._entries: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return what was put as *key*, or None."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry  # at the end, where the newest stand
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Remember *value*, whose weight counts against the capacity."""
        _, old = self._entries.pop(key, (None, 0))
        self._entries[key] = value, weight
        self.weight += weight - old
        while self.weight > self._capacity and len(self._entries) > 1:
            _, lost = self._entries.pop(next(iter(self._entries)))
            self.weight -= lost

"""What one peer may use of a collector, so that none can starve the others."""

from __future__ import annotations

from typing import Final

import attrs

BURST_S: Final = 4.0
"""How much may come at once, in seconds of the allowance: what a rank's ring held while the network was away."""


@attrs.frozen
class Quota:
    """The allowance of each peer, per second."""

    events: float = 200_000.0
    size_bytes: float = float(32 << 20)
    messages: float = 2_000.0


@attrs.define
class Purse:
    """
    What is left of one peer's allowance: it fills with time and may fall below nought, when nothing more is admitted.

    Args:
        quota: What it fills with.
        now_s: The time now, by any clock that only goes forward.
    """

    _quota: Quota
    _at_s: float
    _events: float = attrs.field(init=False)
    _bytes: float = attrs.field(init=False)
    _messages: float = attrs.field(init=False)
    cut_messages: int = attrs.field(default=0, init=False)
    """Not admitted so far."""
    cut_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._events = self._quota.events * BURST_S
        self._bytes = self._quota.size_bytes * BURST_S
        self._messages = self._quota.messages * BURST_S

    def admit(self, size_bytes: int, now_s: float) -> bool:
        """Take a message of *size_bytes* out of the allowance; False, and counted, if there is nothing left."""
        self._fill(now_s)
        if min(self._events, self._bytes, self._messages) <= 0:
            self.cut_messages += 1
            self.cut_bytes += size_bytes
            return False
        self._bytes -= size_bytes
        self._messages -= 1
        return True

    def charge(self, events: int) -> None:
        """Take *events* that were found in an admitted message out of the allowance."""
        self._events -= events

    def is_empty(self, now_s: float) -> bool:
        """Return whether nothing would be admitted."""
        self._fill(now_s)
        return min(self._events, self._bytes, self._messages) <= 0

    def _fill(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            quota = self._quota
            self._at_s = now_s
            self._events = min(self._events + quota.events * passed_s, quota.events * BURST_S)
            self._bytes = min(self._bytes + quota.size_bytes * passed_s, quota.size_bytes * BURST_S)
            self._messages = min(self._messages + quota.messages * passed_s, quota.messages * BURST_S)

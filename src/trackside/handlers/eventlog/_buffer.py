"""Frames on their way from the porter to the thread that writes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from trackside.handlers.eventlog._entries import Loss
from trackside.handlers.eventlog._series import Entry, Taken


class Buffer:
    """
    A queue of frames that is bounded by bytes and knows what it had no room for.

    What was refused becomes a `Loss` in the place where it is missing. A frame counts until it was
    written, not until it was looked at: `batch` shows the oldest, `settle` removes them.
    """

    def __init__(self, most_bytes: int, now_ns: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        """Guards everything here, and wakes who waits for it to change."""
        self.size_bytes = 0
        self.taken = 0
        """Frames accepted so far."""
        self.settled = 0
        """Of those, the ones that were written or given up."""
        self.waiting_events = 0
        self.refused_events = 0
        self.trouble = ""
        """Why nothing is being written; empty if it is."""
        self._most_bytes = most_bytes
        self._now_ns = now_ns
        self._entries: deque[Entry] = deque()
        self._refused: Loss | None = None

    def put(self, frame: bytes, events: int) -> bool:
        """Append *frame* if there is room; the caller holds `changed`."""
        if self.size_bytes + len(frame) > self._most_bytes:
            self.refuse(frame, events, self.trouble or "the disk is slower than the stream")
            return False
        self._place_refused()
        self._entries.append(Taken(frame, events))
        self.size_bytes += len(frame)
        self.waiting_events += events
        self.taken += 1
        return True

    def refuse(self, frame: bytes, events: int, reason: str) -> None:
        """Count *frame* as lost here; the caller holds `changed`."""
        self.refused_events += events
        loss = self._refused
        if loss is None:
            loss = self._refused = Loss(0, 0, reason, self._now_ns())
        loss.events += events
        loss.size_bytes += len(frame)

    def note(self, loss: Loss) -> None:
        """Append *loss*, which happened before the frames got here; the caller holds `changed`."""
        self._place_refused()
        self._entries.append(loss)

    def put_first(self, loss: Loss) -> None:
        """Let *loss* be written before everything that waits."""
        with self.changed:
            self._entries.appendleft(loss)

    def batch(self, most_bytes: int) -> list[Entry]:
        """Return the oldest entries, one at least if there is any, and about *most_bytes* of them."""
        with self.changed:
            self._join_refused()
            self._place_refused()
            chosen: list[Entry] = []
            size = 0
            for entry in self._entries:
                chosen.append(entry)
                size += len(entry.frame) if isinstance(entry, Taken) else 0
                if size >= most_bytes:
                    break
            return chosen

    def settle(self, entries: list[Entry]) -> None:
        """Remove *entries*, the oldest, of which nothing more is to be done."""
        with self.changed:
            for entry in entries:
                self._entries.popleft()
                if isinstance(entry, Taken):
                    self.size_bytes -= len(entry.frame)
                    self.waiting_events -= entry.events
                    self.settled += 1

    def _join_refused(self) -> None:
        """Add what was refused to the loss before it, if that is the last entry and of the same reason."""
        last = self._entries[-1] if self._entries else None
        refused = self._refused
        if refused is not None and isinstance(last, Loss) and last.reason == refused.reason:
            last.events += refused.events
            last.size_bytes += refused.size_bytes
            self._refused = None

    def _place_refused(self) -> None:
        if self._refused is not None:
            self._entries.append(self._refused)
            self._refused = None

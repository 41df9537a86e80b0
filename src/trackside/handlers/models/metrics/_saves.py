"""Checkpoints: what was done when each save began, and what of it can no longer be lost."""

from __future__ import annotations

from typing import Final

import attrs

from trackside.events import CheckpointSaveFailed, CheckpointSaveSucceeded

_MOST_OPEN: Final = 1_024
_MOST_DONE: Final = 64


@attrs.define
class Progress:
    """The training work that the model's present state is made of; what was lost is not in it."""

    iterations: int = 0
    samples: int = 0
    train_ns: int = 0
    """In this process, as the next."""
    validation_ns: int = 0
    flops: int | None = None
    """Of all ranks and attempts; None if it is not known what was done before this process."""


@attrs.define
class OpenSave:
    """A save of which the outcome is not known, and what was done when it began."""

    span_id: int
    global_step: int
    progress: Progress
    loop_began_ns: int | None


@attrs.define
class Blocked:
    """How long saves of one strategy kept training waiting."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Take one in."""
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns) if self.count else duration_ns
        self.count += 1
        self.total_ns += duration_ns


@attrs.define
class Saves:
    """The saves of one process, identified by their span and their global step: outcomes come in any order."""

    opened: list[OpenSave] = attrs.field(factory=list)
    settled_ids: list[int] = attrs.field(factory=list)
    """Span ids of the saves that succeeded last: a success that is told twice is one."""
    complete: list[Progress] = attrs.field(factory=list)
    """What the checkpoints that were completed last hold."""
    furthest: Progress | None = None
    furthest_step: int = -1
    successes: int = 0
    failures: int = 0
    first_success_ns: int | None = None
    latest_success_ns: int | None = None

    def begin(self, save: OpenSave) -> None:
        """Remember a save that has begun."""
        self.opened.append(save)
        del self.opened[:-_MOST_OPEN]

    def fail(self, event: CheckpointSaveFailed) -> None:
        """Forget a save: nothing will come of it."""
        self._settle(event)
        self.failures += 1

    def succeed(self, event: CheckpointSaveSucceeded) -> tuple[bool, OpenSave | None]:
        """Return whether the success is news, and the save, if its beginning is known."""
        if event.save_span_id in self.settled_ids:
            return False, None
        save = self._settle(event)
        if event.save_span_id:
            self.settled_ids.append(event.save_span_id)
            del self.settled_ids[:-_MOST_OPEN]
        self.successes += 1
        at_ns = event.at_ns
        self.first_success_ns = at_ns if self.first_success_ns is None else min(self.first_success_ns, at_ns)
        self.latest_success_ns = at_ns if self.latest_success_ns is None else max(self.latest_success_ns, at_ns)
        if save is not None:
            self.complete.append(save.progress)
            del self.complete[:-_MOST_DONE]
            if self.furthest is None or save.progress.iterations >= self.furthest.iterations:
                self.furthest, self.furthest_step = save.progress, event.global_step
        return True, save

    def _settle(self, event: CheckpointSaveSucceeded | CheckpointSaveFailed) -> OpenSave | None:
        """Take out the save that *event* is about: the one of its span, else the latest one of its step."""
        found = [save for save in self.opened if save.span_id == event.save_span_id]
        if not found and not event.save_span_id:
            found = [save for save in self.opened if save.global_step == event.global_step]
        if not found:
            return None
        self.opened.remove(found[-1])
        return found[-1]

    def resumable(self, iterations: int) -> Progress:
        """Return what is left of this process's work for a loop that starts again at *iterations*."""
        before = [progress for progress in self.complete if progress.iterations <= iterations]
        return max(before, key=lambda progress: progress.iterations, default=Progress())

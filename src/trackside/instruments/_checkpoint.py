"""Checkpoints: loading, saving at once or in the background, and the outcome of each save."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, Final

from trackside._platform import after_fork_in_child
from trackside.bus import default_bus
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    ConfigError,
    SpanEnded,
    clock,
    span_names,
)
from trackside.instruments._defaults import training_defaults
from trackside.instruments._raised import message_of, type_name
from trackside.instruments._span import Span, tolerated

if TYPE_CHECKING:
    from typing_extensions import Self

_REMEMBERED: Final = 1_024
_wants: Final = default_bus.wants
_log: Final = default_bus.log
_next_attempt: Final = itertools.count(1).__next__
_pending: Final[dict[int, CheckpointSave]] = {}
"""The saves whose outcome is not known, by global step; the oldest is forgotten first."""


class CheckpointSave(Span):
    """
    A checkpoint being saved: the span of the save, or of its blocking part, and the save's outcome.

    Made by `checkpoint_save`. A synchronous save has succeeded when its block ends without an exception. For an
    asynchronous one `succeeded` or `failed` records that later, from any thread, also after the loop or the job ended.

    Attributes:
        global_step: The iteration of the checkpoint; it identifies the save.
        strategy: ``sync`` or ``async``.
    """

    __slots__ = ("_asks", "_has_outcome", "_opened_ns", "global_step", "strategy")

    def __init__(self, global_step: int, strategy: str, attributes: dict[str, Any], *, asks: bool = False) -> None:
        super().__init__(span_names.OF_CHECKPOINT_SAVE[strategy], SpanEnded, attributes)
        self.global_step: int = global_step
        self.strategy: str = strategy
        self._asks = asks
        self._has_outcome = False
        self._opened_ns: int | None = None

    def open(self, *, at_ns: int | None = None) -> Self:
        """
        Begin, within the innermost open span of this thread or task.

        Args:
            at_ns: When it began, in ns since the epoch; now unless given.
        """
        self._has_outcome = False
        self._opened_ns = clock.now_ns() if at_ns is None else at_ns
        _pending.pop(self.global_step, None)
        _pending[self.global_step] = self
        for old in list(_pending)[:-_REMEMBERED]:
            _pending.pop(old, None)
        self._given = {**self._given, span_names.SAVE_CHECKPOINT_ATTEMPT_COUNT: _next_attempt()}
        return super().open(at_ns=self._opened_ns)

    __enter__ = open  # noqa: A003  the method above is meant

    def close(self, *, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """
        End the save, or its blocking part.

        Args:
            at_ns: When it ended, in ns since the epoch; now unless given.
            error: The exception that ended it; then the save has failed.
        """
        end_ns = clock.now_ns() if at_ns is None else at_ns
        if not self._has_outcome and self._opened_ns is not None:
            if error is not None or (self._asks and self.strategy == "sync"):
                self.failed(error, at_ns=end_ns)
            elif self.strategy == "sync":
                self.succeeded(at_ns=end_ns)
        super().close(at_ns=end_ns, error=error)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error=error)

    def succeeded(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        size_bytes: int | None = None,
        at_ns: int | None = None,
    ) -> None:
        """
        Report that the checkpoint is complete and can be resumed from.

        Args:
            path: The path of the checkpoint.
            size_bytes: Its size.
            at_ns: The time of the success, in ns since the epoch; now unless given.
        """
        at_ns = clock.now_ns() if at_ns is None else at_ns
        self._settle()
        if _wants(CheckpointSaveSucceeded):
            size = self.attributes.get("size_bytes") if size_bytes is None else size_bytes
            _log(CheckpointSaveSucceeded(at_ns=at_ns, size_bytes=size, **self._identity(at_ns, path)))

    def failed(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        """
        Report that there will be no checkpoint from this save.

        Args:
            error: The exception, if there was one.
            at_ns: The time of the failure, in ns since the epoch; now unless given.
        """
        at_ns = clock.now_ns() if at_ns is None else at_ns
        self._settle()
        if _wants(CheckpointSaveFailed):
            described = None if error is None else {"type": type_name(error), "message": message_of(error)}
            _log(CheckpointSaveFailed(at_ns=at_ns, error=described, **self._identity(at_ns, None)))

    def _settle(self) -> None:
        self._has_outcome = True
        if _pending.get(self.global_step) is self:
            _pending.pop(self.global_step, None)

    def _identity(self, at_ns: int, path: str | os.PathLike[str] | None) -> dict[str, Any]:
        where = self.attributes.get("path", "") if path is None else path
        return {
            "span_id": self.id,
            "global_step": self.global_step,
            "strategy": self.strategy,
            "save_span_id": self.id,
            "path": os.fspath(where),
            "duration_ns": None if self._opened_ns is None else max(0, at_ns - self._opened_ns),
        }

    def _fresh(self) -> CheckpointSave:
        return CheckpointSave(self.global_step, self.strategy, self._given, asks=self._asks)


def checkpoint_save(
    global_step: int, *, strategy: str | None = None, path: str | os.PathLike[str] | None = None, **attributes: Any
) -> CheckpointSave:
    """
    Return the span of saving a checkpoint; use it with ``with``, or as a decorator.

    ::

        with checkpoint_save(step, path=path) as save:
            torch.save(state, path)
            save.set(size_bytes=path.stat().st_size)

        with checkpoint_save(step, strategy="async") as save:
            future = async_save(state)
        future.add_done_callback(lambda _: save.succeeded())

    Args:
        global_step: The iteration of the checkpoint.
        strategy: ``sync`` or ``async``; as configured unless given.
        path: The path to which it is saved.
        attributes: Further attributes of the span.
    """
    chosen = strategy_for(strategy)
    return CheckpointSave(global_step, chosen, save_attributes(global_step, chosen, path, attributes))


def strategy_for(given: str | None) -> str:
    """Return the strategy *given*; the configured one if it is None or invalid, and report an invalid one."""
    if given is not None:
        if given in span_names.OF_CHECKPOINT_SAVE:
            return given
        tolerated("checkpoint_save", ConfigError("strategy", given, 'give "sync" or "async"'))
    return training_defaults().save_checkpoint_strategy


def save_attributes(
    global_step: int, strategy: str, path: str | os.PathLike[str] | None, attributes: dict[str, Any]
) -> dict[str, Any]:
    """Return the attributes of a save's span at its start."""
    known: dict[str, Any] = {
        span_names.CHECKPOINT_STRATEGY: strategy,
        span_names.CURRENT_ITERATION: global_step,
    }
    if path is not None:
        known["path"] = os.fspath(path)
    return {**known, **attributes}


def save_of(global_step: int) -> CheckpointSave:
    """Return the save of *global_step* that has no outcome yet; if there is none, a new one without a start."""
    save = _pending.get(global_step)
    if save is None:
        strategy = training_defaults().save_checkpoint_strategy
        save = CheckpointSave(global_step, strategy, save_attributes(global_step, strategy, None, {}))
    return save


def checkpoint_succeeded(
    global_step: int,
    *,
    path: str | os.PathLike[str] | None = None,
    size_bytes: int | None = None,
    at_ns: int | None = None,
) -> None:
    """
    Report that the checkpoint of *global_step* is complete, from any code that knows it.

    Args:
        global_step: As it was given to `checkpoint_save`.
        path: The path of the checkpoint.
        size_bytes: Its size.
        at_ns: The time of the success, in ns since the epoch; now unless given.
    """
    save_of(global_step).succeeded(path=path, size_bytes=size_bytes, at_ns=at_ns)


def checkpoint_failed(global_step: int, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
    """
    Report that there will be no checkpoint of *global_step*, from any code that knows it.

    Args:
        global_step: As it was given to `checkpoint_save`.
        error: The exception, if there was one.
        at_ns: The time of the failure, in ns since the epoch; now unless given.
    """
    save_of(global_step).failed(error, at_ns=at_ns)


def checkpoint_save_finalization(global_step: int | None = None, **attributes: Any) -> Span:
    """
    Return the span of completing an asynchronous save; use it with ``with``, or as a decorator.

    Args:
        global_step: The iteration of the checkpoint.
        attributes: Further attributes of the span.
    """
    known = {} if global_step is None else {span_names.CURRENT_ITERATION: global_step}
    return Span(span_names.CHECKPOINT_SAVE_FINALIZATION, SpanEnded, {**known, **attributes})


def checkpoint_load(
    global_step: int | None = None, *, path: str | os.PathLike[str] | None = None, **attributes: Any
) -> Span:
    """
    Return the span of loading a checkpoint; use it with ``with``, or as a decorator.

    Args:
        global_step: The iteration of the checkpoint, if it is known before; `Span.set` sets it later as
            ``current_iteration``.
        path: The path of the checkpoint.
        attributes: Further attributes of the span.
    """
    known: dict[str, Any] = {} if global_step is None else {span_names.CURRENT_ITERATION: global_step}
    if path is not None:
        known["path"] = os.fspath(path)
    return Span(span_names.CHECKPOINT_LOAD, SpanEnded, {**known, **attributes})


after_fork_in_child(_pending.clear)

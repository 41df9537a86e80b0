"""Checkpoints of a trainer: the whole of a save, by callback or by the script, and of a load."""

from __future__ import annotations

import os
from typing import Any, Final

from trackside.events import span_names
from trackside.instruments._checkpoint import CheckpointSave, checkpoint_load, checkpoint_save
from trackside.instruments._span import Span
from trackside.integrations._patches import Patches

_ASYNC_IO: Final = "AsyncCheckpointIO"
_FITTING: Final = "fit"


class TimedSaves:
    """
    Stands in for ``save_checkpoint`` of one trainer, and stays: a script may save after training too.

    Args:
        trainer: The trainer.
        save: What it stands in for.
    """

    def __init__(self, trainer: Any, save: Any) -> None:
        self._trainer = trainer
        self._save = save
        self._pending: dict[str, CheckpointSave] = {}
        """By path, the saves that were handed to another thread."""

    def __call__(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save, within a span; whatever comes out of it, the span is closed and says so."""
        writer = _background_writer(self._trainer)
        strategy = None if writer is None else "async"
        # Counted from 0, as everywhere: the checkpoint holds what the iteration before the next one did.
        with checkpoint_save(self._trainer.global_step - 1, strategy=strategy, path=filepath) as save:
            if writer is not None and getattr(self._trainer, "is_global_zero", True):
                self._pending[os.fspath(filepath)] = save
                self._watch(writer)
            return self._save(filepath, *args, **kwargs)

    def _watch(self, writer: Any) -> None:
        if not isinstance(vars(writer).get("save_checkpoint"), BackgroundSaves):
            writer.save_checkpoint = BackgroundSaves(writer.save_checkpoint, self._pending)


class BackgroundSaves:
    """Stands in for ``save_checkpoint`` of what writes in another thread, and reports the outcome of each save."""

    def __init__(self, write: Any, pending: dict[str, CheckpointSave]) -> None:
        self._write = write
        self._pending = pending

    def __call__(self, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Write; the save of that path has succeeded then, or failed."""
        save = self._pending.pop(os.fspath(path), None)
        try:
            done = self._write(checkpoint, path, *args, **kwargs)
        except BaseException as error:
            if save is not None:
                save.failed(error)
            raise
        if save is not None:
            save.succeeded(path=path)
        return done


def _background_writer(trainer: Any) -> Any:
    """Return what writes checkpoints in another thread; None if they are written at once."""
    writer = getattr(trainer.strategy, "checkpoint_io", None)
    is_async = False
    while writer is not None:
        is_async = is_async or any(cls.__name__ == _ASYNC_IO for cls in type(writer).__mro__)
        inner = getattr(writer, "checkpoint_io", None)
        if inner is None:
            return writer if is_async else None
        writer = inner
    return None


class Checkpoints:
    """
    The saves and the load of one run.

    Args:
        trainer: The trainer.
        patches: Replaces methods for as long as the run lasts.
    """

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        self._load: Span | None = None
        if not isinstance(vars(trainer).get("save_checkpoint"), TimedSaves):
            trainer.save_checkpoint = TimedSaves(trainer, trainer.save_checkpoint)
        # Reading the file and filling the model are two calls; what the strategy sets up comes after both.
        patches.replace(trainer.strategy, "load_checkpoint", self._reading)
        patches.replace(trainer.strategy, "load_model_state_dict", self._filling)

    def _reading(self, load: Any) -> Any:
        def timed(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            self.end_load()
            self._load = checkpoint_load(path=checkpoint_path).open()
            try:
                found = load(checkpoint_path, *args, **kwargs)
            except BaseException as error:
                self.end_load(error)
                raise
            step = found.get("global_step") if isinstance(found, dict) else None
            # Only a fit goes on behind the checkpoint; who loads it to test it undoes no work.
            if isinstance(step, int) and self._trainer.state.fn == _FITTING:
                self._load.set(**{span_names.CURRENT_ITERATION: step - 1})
            return found

        return timed

    def _filling(self, fill: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            try:
                done = fill(*args, **kwargs)
            except BaseException as error:
                self.end_load(error)
                raise
            self.end_load()
            return done

        return timed

    def end_load(self, error: BaseException | None = None) -> None:
        """End the load, if one is open."""
        load, self._load = self._load, None
        if load is not None:
            load.close(error=error)

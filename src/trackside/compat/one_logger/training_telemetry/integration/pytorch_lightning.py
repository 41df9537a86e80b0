"""
One Logger's integration of Lightning under its names: a callback, and two ways to give it to a trainer.

`trackside.integrations.lightning` records more, without a trainer of its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

from trackside.compat.one_logger.core.exceptions import assert_that
from trackside.compat.one_logger.training_telemetry.api import callbacks as api
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from trackside.events._errors import needing_extra

with needing_extra("Lightning", "lightning"):
    from lightning.pytorch import Callback, Trainer

__all__ = ["OneLoggerPTLTrainer", "TimeEventCallback", "hook_trainer_cls"]


class TimeEventCallback(Callback):  # type: ignore[misc,unused-ignore]  # Lightning may not be there when types are checked
    """
    Records the training loop, its iterations and validation. Only the trainers below record saves.

    Lightning has no hook for some phases. Call the methods named after them to record them: ``on_model_init_start()``,
    ``on_dataloader_init_start()``, ``on_app_end()`` and so on.

    Args:
        training_telemetry_provider: The provider, configured.
        call_on_app_start: Whether to call ``on_app_start()``; give False if it was called before.
    """

    def __init__(
        self,
        training_telemetry_provider: TrainingTelemetryProvider,
        call_on_app_start: bool = True,  # noqa: FBT001, FBT002  the peer's signature
    ) -> None:
        self._provider = training_telemetry_provider
        self._is_validating = False
        if call_on_app_start:
            api.on_app_start()

    # --- what Lightning calls --------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, *_: object) -> None:
        """Open the training loop, at the trainer's present step."""
        training = self._provider.config.telemetry_config
        assert_that(training is not None, "the training is not configured; call set_training_telemetry_config() first")
        batch = getattr(training, "global_batch_size", 0)
        api.on_train_start(train_iterations_start=trainer.global_step, train_samples_start=trainer.global_step * batch)

    def on_train_end(self, *_: object, **__: object) -> None:
        """Close the training loop."""
        api.on_train_end()

    def on_train_batch_start(self, *_: object, **__: object) -> None:
        """Open an iteration."""
        api.on_training_single_iteration_start()

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        """Close the iteration."""
        api.on_training_single_iteration_end()

    def on_validation_start(self, *_: object, **__: object) -> None:
        """Open the validation loop."""
        api.on_validation_start()

    def on_validation_end(self, *_: object, **__: object) -> None:
        """Close the validation loop, and an iteration that is open."""
        self._end_validation_iteration()
        api.on_validation_end()

    def on_validation_batch_start(self, *_: object, **__: object) -> None:
        """Open an iteration; first close an open one, because Lightning skips the end of a step that returned None."""
        self._end_validation_iteration()
        self._is_validating = True
        api.on_validation_single_iteration_start()

    def on_validation_batch_end(self, *_: object, **__: object) -> None:
        """Close the iteration."""
        self._end_validation_iteration()

    def _end_validation_iteration(self) -> None:
        if self._is_validating:
            self._is_validating = False
            api.on_validation_single_iteration_end()

    # --- what the trainers below call ------------------------------------------------------------------------------

    def on_save_checkpoint_start(self, global_step: int) -> None:
        """Open the span of a save."""
        api.on_save_checkpoint_start(global_step)

    def on_save_checkpoint_success(self, global_step: int) -> None:
        """Record that the checkpoint was saved."""
        api.on_save_checkpoint_success(global_step=global_step)

    def on_save_checkpoint_end(self, global_step: int | None = None) -> None:  # noqa: ARG002
        """Close the span of the save."""
        api.on_save_checkpoint_end()

    # --- what the application may call -----------------------------------------------------------------------------

    on_app_end: Final = staticmethod(api.on_app_end)
    on_model_init_start: Final = staticmethod(api.on_model_init_start)
    on_model_init_end: Final = staticmethod(api.on_model_init_end)
    on_dataloader_init_start: Final = staticmethod(api.on_dataloader_init_start)
    on_dataloader_init_end: Final = staticmethod(api.on_dataloader_init_end)
    on_optimizer_init_start: Final = staticmethod(api.on_optimizer_init_start)
    on_optimizer_init_end: Final = staticmethod(api.on_optimizer_init_end)
    on_load_checkpoint_start: Final = staticmethod(api.on_load_checkpoint_start)
    on_load_checkpoint_end: Final = staticmethod(api.on_load_checkpoint_end)
    on_testing_start: Final = staticmethod(api.on_testing_start)
    on_testing_end: Final = staticmethod(api.on_testing_end)


def _saved(callback: TimeEventCallback, step: int, save: Callable[[], Any]) -> Any:
    """Call *save* within the span of a save, which ends whatever happens; its success is recorded if it returns."""
    callback.on_save_checkpoint_start(global_step=step)
    try:
        result = save()
        callback.on_save_checkpoint_success(global_step=step)
    finally:
        callback.on_save_checkpoint_end()
    return result


def hook_trainer_cls(
    cls: type[Trainer],
    training_telemetry_provider: TrainingTelemetryProvider,
    telemetry_callback: TimeEventCallback | None = None,
) -> tuple[type[Trainer], TimeEventCallback]:
    """
    Change *cls* so that its trainers record their work, saves included.

    Returns:
        *cls*, whose trainers have the callback first in their list and as ``nv_one_logger_callback``; and the callback.
    """
    callback = TimeEventCallback(training_telemetry_provider) if telemetry_callback is None else telemetry_callback
    initialize, save = cls.__init__, cls.save_checkpoint

    @functools.wraps(initialize)
    def wrapped_initialize(self: Trainer, *args: Any, **kwargs: Any) -> None:
        callbacks = kwargs.get("callbacks", [])
        if not isinstance(callbacks, list):
            raise ValueError(f"callbacks is {callbacks!r}; give a list")  # noqa: TRY004  as the peer does
        initialize(self, *args, **{**kwargs, "callbacks": [callback, *callbacks]})

    @functools.wraps(save)
    def wrapped_save(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        return _saved(callback, self.global_step, lambda: save(self, *args, **kwargs))

    hooked: Any = cls
    hooked.__init__, hooked.save_checkpoint = wrapped_initialize, wrapped_save
    hooked.nv_one_logger_callback = property(lambda _: callback)
    return cls, callback


class OneLoggerPTLTrainer(Trainer):  # type: ignore[misc,unused-ignore]  # as above
    """
    A trainer that records its work, saves included.

    Args:
        trainer_config: The arguments of Lightning's ``Trainer``; the callback is put first in its ``callbacks``.
        training_telemetry_provider: The provider, configured.
    """

    def __init__(self, trainer_config: dict[str, Any], training_telemetry_provider: TrainingTelemetryProvider) -> None:
        self._nv_one_logger_callback = TimeEventCallback(training_telemetry_provider)
        callbacks = [self._nv_one_logger_callback, *(trainer_config.get("callbacks") or [])]
        super().__init__(**{**trainer_config, "callbacks": callbacks})

    def save_checkpoint(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint as Lightning does, within the span of a save."""
        save = super().save_checkpoint
        _saved(self._nv_one_logger_callback, self.global_step, lambda: save(filepath, *args, **kwargs))

    @property
    def nv_one_logger_callback(self) -> TimeEventCallback:
        """The callback, whose methods record phases that Lightning has no hook for."""
        return self._nv_one_logger_callback

"""Defaults of loops and checkpoints, from the job's configuration, so that the training script need not repeat them."""

from __future__ import annotations

import attrs

from trackside.events import Value


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TrainingDefaults(Value):
    """The default arguments of loops and saves."""

    save_checkpoint_strategy: str = "sync"
    """``sync`` or ``async``."""
    global_batch_size: int | None = None
    """Samples per training iteration over all ranks; None if it varies."""
    seq_length: int | None = None
    """Tokens per sample."""
    flops_per_sample: int | None = None
    train_iterations_target: int | None = None
    train_samples_target: int | None = None


_defaults = TrainingDefaults()


def training_defaults() -> TrainingDefaults:
    """Return the defaults that the job's configuration gives for loops and checkpoints."""
    return _defaults


def set_training_defaults(defaults: TrainingDefaults) -> None:
    """Use *defaults* for loops and saves that begin from now on."""
    global _defaults  # noqa: PLW0603  a process trains for one job
    _defaults = defaults

"""The configuration of a training: all that is known of it before it runs."""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events import ConfigError, TrainingConfigured
from trackside.instruments import TrainingDefaults
from trackside.job import _checks as checks
from trackside.job._checks import OrFunction


@attrs.frozen(kw_only=True)
class TrainingConfig:
    """
    The training: what the metrics of its loops are computed from.

    Fields may be functions of no arguments where they are not known yet; those are called when the training's
    configuration is published.

    Raises:
        ConfigError: if a field is not what it should be; it names the field, what was given, and what is right.
    """

    perf_tag: OrFunction[str | list[str]] = attrs.field(validator=checks.tags())
    """Runs with the same tags are expected to perform alike: same model, data, hardware and software."""
    global_batch_size: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    """Samples per training iteration over all ranks. None where it varies: then each iteration says its own."""
    micro_batch_size: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    seq_length: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    """Tokens per sample."""
    flops_per_sample: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    """Floating-point operations that one sample takes."""
    peak_flops_per_s: float | None = attrs.field(default=None, validator=checks.positive())
    """What one rank's accelerator can do at most, in floating-point operations per second; the MFU needs it."""
    train_iterations_target: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    train_samples_target: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    log_every_n_train_iterations: int = attrs.field(default=50, validator=checks.count())
    """Iterations between two updates of the training metrics."""
    is_train_iterations_enabled: OrFunction[bool] = attrs.field(default=True, validator=checks.flag(or_function=True))
    """A label, as the next three: whether the job does this. Nothing is switched by it."""
    is_validation_iterations_enabled: OrFunction[bool] = attrs.field(
        default=True, validator=checks.flag(or_function=True)
    )
    is_test_iterations_enabled: OrFunction[bool] = attrs.field(default=True, validator=checks.flag(or_function=True))
    is_save_checkpoint_enabled: OrFunction[bool] = attrs.field(default=True, validator=checks.flag(or_function=True))
    is_log_throughput_enabled: OrFunction[bool] = attrs.field(default=False, validator=checks.flag(or_function=True))
    """Whether throughput is wanted; it needs *flops_per_sample*."""
    save_checkpoint_strategy: str = attrs.field(default="sync", validator=checks.one_of("sync", "async"))
    custom_metadata: dict[str, Any] | None = attrs.field(default=None, validator=checks.metadata())

    def __attrs_post_init__(self) -> None:
        if self.is_log_throughput_enabled is True and self.flops_per_sample is None:
            raise ConfigError("flops_per_sample", None, "give a whole number above 0, or no throughput can be logged")

    @property
    def perf_tags(self) -> tuple[str, ...]:
        """
        The tags as a tuple.

        Raises:
            ConfigError: if the function that was given for them fails.
        """
        tag = checks.resolved("perf_tag", self.perf_tag, owner=self)
        return (tag,) if isinstance(tag, str) else tuple(tag)

    def resolved(self) -> TrainingConfig:
        """
        Return the same with every function replaced by what it says now.

        Raises:
            ConfigError: if one of them raises, or says something wrong.
        """
        values = {
            field.name: checks.resolved(field.name, getattr(self, field.name), owner=self)
            for field in attrs.fields(type(self))
        }
        return TrainingConfig(**values)

    def configured(self) -> TrainingConfigured:
        """
        Return the event that records it.

        Raises:
            ConfigError: as `resolved`.
        """
        known = attrs.asdict(self.resolved(), recurse=False)
        known["perf_tag"] = [known["perf_tag"]] if isinstance(known["perf_tag"], str) else list(known["perf_tag"])
        known["checkpoint_strategy"] = known.pop("save_checkpoint_strategy")
        known["custom_metadata"] = checks.listed(known["custom_metadata"])
        return TrainingConfigured(**known)

    def defaults(self) -> TrainingDefaults:
        """
        Return what loops and saves need to know of it.

        Raises:
            ConfigError: as `resolved`.
        """
        known = attrs.asdict(self.resolved(), recurse=False)
        return TrainingDefaults(**{field.name: known[field.name] for field in attrs.fields(TrainingDefaults)})

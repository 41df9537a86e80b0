"""The configuration of a job: its identity, and how telemetry behaves in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from trackside.bus import Bus, Subscription, default_bus
from trackside.events import ConfigError, Event, JobConfigured, Source, __version__
from trackside.instruments import parent_from
from trackside.job import _checks as checks
from trackside.job._checks import OrFunction
from trackside.job._log_config import LogConfig
from trackside.job._presets import preset
from trackside.job._ranks import Ranks, is_among
from trackside.job._toml import read_toml, structured
from trackside.job._training_config import TrainingConfig
from trackside.rules import EventTypes, Rule

ANNOTATIONS = ("", "record_function", "nvtx")


@attrs.frozen(kw_only=True)
class RankHandler:
    """A handler that only some ranks have."""

    make: Callable[[], Any]
    """Makes the handler; called on those ranks alone."""
    ranks: Ranks = "all"
    to: EventTypes = Event
    preset: str = "all"
    """How much it gets: ``default``, ``per_step``, ``profiling`` or ``all``."""
    keep: Rule | None = None
    """A rule that must hold too."""

    def __attrs_post_init__(self) -> None:
        if not callable(self.make):
            raise ConfigError("make", self.make, "give a function that makes the handler")
        is_among(0, self.ranks)
        preset(self.preset)


@attrs.frozen(kw_only=True)
class JobConfig:
    """
    The job: its names and tags, what it is part of, and how telemetry behaves in it.

    ::

        job = JobConfig(application_name="charlm", session_tag="charlm-2026-10", training=TrainingConfig(...))
        with trackside.start("runs/", job=job):
            train()

    Fields may be functions of no arguments where they are not known yet; those are called when telemetry starts.

    Raises:
        ConfigError: if a field is not what it should be; it names the field, what was given, and what is right.
    """

    application_name: str = attrs.field(validator=checks.text())
    session_tag: OrFunction[str] = attrs.field(default="", validator=checks.text_or_nothing(or_function=True))
    """The same for all runs that are one logical task: restarts, and what continues from their checkpoints."""
    world_size: OrFunction[int | None] = attrs.field(
        default=None, validator=checks.count(or_function=True, optional=True)
    )
    """The number of ranks, if the launcher's variables do not say."""
    is_baseline_run: OrFunction[bool] = attrs.field(default=False, validator=checks.flag(or_function=True))
    """Whether others are compared with this run."""
    run_id: str | None = attrs.field(default=None, validator=attrs.validators.optional(checks.text()))
    """One attempt or more of one launch; the launcher's unless given."""
    rank: int | None = attrs.field(default=None, validator=checks.index())
    local_rank: int | None = attrs.field(default=None, validator=checks.index())
    attempt: int | None = attrs.field(default=None, validator=checks.index())
    custom_metadata: dict[str, Any] | None = attrs.field(default=None, validator=checks.metadata())
    """Whatever else is to be kept with the run."""
    summary_data_schema_version: str = attrs.field(default="1.0.0", validator=checks.text())
    training: TrainingConfig | None = attrs.field(
        default=None, validator=attrs.validators.optional(checks.instance_of(TrainingConfig))
    )
    """The training; it may come later, once, through `set_training_config`."""

    strict: bool = attrs.field(default=False, validator=checks.flag())
    """
    Raise what handlers raise, and what is wrong with the order of spans, into the training; for development.

    A span that ends before what is inside it, or is left open, is reported and no error: it ends all the same.

    Otherwise nothing is raised: one notice, and the counts show the rest.
    """
    enable_for_current_rank: OrFunction[bool] = attrs.field(default=True, validator=checks.flag(or_function=True))
    """Whether this rank takes part. Where it does not, every instrument costs next to nothing."""
    disabled_ranks: Ranks = "none"
    """Ranks that do not take part."""
    handlers: Sequence[RankHandler] = ()
    """Handlers that only some ranks have."""
    annotate: str = attrs.field(default="", validator=checks.one_of(*ANNOTATIONS))
    """Show spans in torch's profiler (``record_function``) or in Nsight (``nvtx``) as well."""
    log: LogConfig | None = attrs.field(
        default=None, validator=attrs.validators.optional(checks.instance_of(LogConfig))
    )
    """What becomes of trackside's own messages; nothing is changed unless given."""

    def __attrs_post_init__(self) -> None:
        is_among(0, self.disabled_ranks, field="disabled_ranks")
        for handler in self.handlers:
            if not isinstance(handler, RankHandler):
                raise ConfigError("handlers", handler, "give RankHandler(make=…, ranks=…)")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> JobConfig:
        """
        Read a configuration from a TOML file.

        The file's keys are the fields; ``training`` and ``log`` are tables. What can only be said in Python
        (functions, *handlers*) cannot be said there.

        Raises:
            UnreadableError: if there is no such file, or it is no TOML.
            ConfigError: if a key is unknown, one that is needed is missing, or a value is not what it should be.
        """
        return structured(read_toml(path), cls, where=os.fspath(path))

    def source_fields(self) -> dict[str, Any]:
        """
        Return what is said here of the process, as `Source.detect` takes it.

        Raises:
            ConfigError: if a function that was given for a field raises, or returns a value that is wrong.
        """
        said = {
            "application": self.application_name,
            "session_tag": self._resolved("session_tag"),
            "baseline": self._resolved("is_baseline_run"),
            "world_size": self._resolved("world_size"),
            "perf_tags": self.training.perf_tags if self.training is not None else None,
            "run_id": self.run_id,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "attempt": self.attempt,
            "metadata": {key: str(value) for key, value in (self.custom_metadata or {}).items()},
            "parent": parent_from(),
        }
        return {name: value for name, value in said.items() if value is not None}

    def is_enabled(self, rank: int) -> bool:
        """
        Return whether *rank*, which is this process's, takes part.

        Raises:
            ConfigError: if the function that was given for it raises, or returns a value that is wrong.
        """
        return self._resolved("enable_for_current_rank") and not is_among(rank, self.disabled_ranks)

    def configured(self, source: Source) -> JobConfigured:
        """Return the event that describes the job, in the process *source*."""
        return JobConfigured(
            world_size=source.world_size,
            rank=source.rank,
            node_name=source.host or socket.gethostname(),
            session_tag=source.session_tag,
            is_baseline_run=source.baseline,
            enable_for_current_rank=self.is_enabled(source.rank),
            application_name=self.application_name,
            perf_tags=list(source.perf_tags),
            one_logger_training_telemetry_version=__version__,
            summary_data_schema_version=self.summary_data_schema_version,
            custom_metadata=checks.listed(self.custom_metadata),
        )

    def subscribe_handlers(self, rank: int, bus: Bus = default_bus) -> list[Subscription]:
        """
        Make and subscribe the handlers that *rank* is to have.

        Raises:
            ConfigError: if one of them cannot be subscribed.
        """
        chosen = [handler for handler in self.handlers if is_among(rank, handler.ranks)]
        return [
            bus.subscribe(handler.make(), to=handler.to, **preset(handler.preset).arguments(handler.keep))
            for handler in chosen
        ]

    def _resolved(self, field: str) -> Any:
        return checks.resolved(field, getattr(self, field), owner=self)

"""The configuration of a job: its identity, and how telemetry behaves in it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs

from trackside.bus import Bus, Subscription, default_bus
from trackside.events import ConfigError, Event, JobConfigured, Source, UnreadableError, __version__
from trackside.events._selected import EventTypes
from trackside.instruments import parent_from
from trackside.job import _checks as checks
from trackside.job._checks import OrFunction
from trackside.job._log_config import LogConfig
from trackside.job._presets import preset
from trackside.job._ranks import Ranks, is_among
from trackside.job._training_config import TrainingConfig
from trackside.rules import Rule

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


if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    loads: Callable[[str], dict[str, Any]] | None = None

T = TypeVar("T")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Return what the TOML file at *path* says.

    Raises:
        UnreadableError: if there is no such file, it is no TOML, or this is Python 3.10.
    """
    if loads is None:
        raise UnreadableError(os.fspath(path), "Python 3.10 reads no TOML", "use Python 3.11 or later, or JobConfig(…)")
    try:
        return loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError(os.fspath(path), error.strerror or str(error), "give the path of a TOML file") from None
    except ValueError as error:
        raise UnreadableError(os.fspath(path), f"is no TOML: {error}", "correct it there") from None


def structured(data: dict[str, Any], cls: type[T], *, where: str) -> T:
    """
    Return *data* as a *cls*.

    Raises:
        ConfigError: if a key is unknown, one that is needed is missing, or a value is not what it should be.
    """
    for name, hint in get_type_hints(cls).items():
        if any(map(attrs.has, get_args(hint))) and not isinstance(data.get(name, {}), (dict, list)):
            raise ConfigError(name, data[name], "give a table")
    try:
        return _converter.structure(data, cls)
    except cattrs.ForbiddenExtraKeysError as error:
        unknown = ", ".join(sorted(error.extra_fields))
        known = ", ".join(field.name for field in attrs.fields(error.cl))
        raise ConfigError(where, unknown, f"known keys of {error.cl.__name__} are {known}") from None
    except KeyError as error:
        raise ConfigError(str(error.args[0]), None, f"{where} has to give it") from None


def _takes_anything_else(hint: Any) -> bool:
    """Return whether *hint* allows a function, or is a union of plain types: the class's validators look at those."""
    return get_origin(hint) in (Union, UnionType, Callable, Collection, Sequence) and not any(
        attrs.has(option) for option in get_args(hint)
    )


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_converter.register_structure_hook_func(_takes_anything_else, lambda value, _: value)
for _plain in (str, int, float, bool):
    # cattrs would make the text "8" of an 8, and a wrong type must show.
    _converter.register_structure_hook(_plain, lambda value, _: value)

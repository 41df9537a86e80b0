"""
The configuration of a job: its identity, its training, and how telemetry behaves in it.

First the validators of fields, whose errors name the field, the value and a remedy; then the parts of `JobConfig`: sets
of ranks, presets for handlers, trackside's own log, the training.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs

from trackside.bus import Bus, Subscription, default_bus
from trackside.core import is_from_signal_handler
from trackside.events import (
    ITERATION,
    PROFILE,
    ConfigError,
    Event,
    JobConfigured,
    Priority,
    ProfileSpanEnded,
    Source,
    TrainingConfigured,
    UnreadableError,
    __version__,
    span_names,
)
from trackside.events._selected import EventTypes
from trackside.events._settings import nearest, suggests_settings
from trackside.instruments import TrainingDefaults, parent_from
from trackside.rules import Rule, all_of, where, without_spans

T = TypeVar("T")

OrFunction: TypeAlias = T | Callable[[], T]
"""A value, or a function of no arguments that returns it when it is needed."""


def _is_text(given: object) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_positive(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given) and given > 0


@attrs.frozen
class _Check:
    """A validator of a field: it accepts what *is_right* accepts, and None or a function if the flags allow it."""

    is_right: Callable[[Any], bool]
    remedy: str
    or_none: bool = False
    or_function: bool = False

    def __call__(self, _instance: Any, field: attrs.Attribute[Any], given: Any) -> None:
        if (self.or_none and given is None) or (self.or_function and callable(given)) or self.is_right(given):
            return
        raise ConfigError(
            field.name, given, self.remedy + (", or a function that returns it" if self.or_function else "")
        )


def _one_of(*allowed: str) -> _Check:
    """Require one of some words."""
    remedy = "give " + " or ".join(f'"{word}"' for word in allowed)
    return _Check(lambda given: isinstance(given, str) and given in allowed, remedy)


def _instance_of(cls: type) -> _Check:
    """Require a *cls*, or None."""
    return _Check(lambda given: isinstance(given, cls), f"give a {cls.__name__}", or_none=True)


_TEXT: Final = _Check(_is_text, "give text that is not blank")
_TEXT_OR_NONE: Final = attrs.evolve(_TEXT, or_none=True)
_FLAG: Final = _Check(lambda given: isinstance(given, bool), "give True or False")
_FLAG_OR_FUNCTION: Final = attrs.evolve(_FLAG, or_function=True)
_COUNT: Final = _Check(lambda given: _is_whole(given) and given > 0, "give a whole number above 0")
_COUNT_OR_NONE: Final = attrs.evolve(_COUNT, or_none=True)
_COUNT_LATER: Final = attrs.evolve(_COUNT, or_none=True, or_function=True)
_INDEX: Final = _Check(lambda given: _is_whole(given) and given >= 0, "give a whole number from 0", or_none=True)
_METADATA: Final = _Check(
    lambda given: isinstance(given, dict) and all(map(_is_text, given)),
    "give a map whose keys are text and not blank",
    or_none=True,
)


def _resolved(field: str, given: OrFunction[Any], *, owner: Any) -> Any:
    """
    Return the value of *field*; if a function was given for it, its result, checked.

    Raises:
        ConfigError: if the function raises, or returns a value that is wrong.
    """
    if not callable(given):
        return given
    try:
        value = given()
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        raise ConfigError(field, given, f"the function raised {type(error).__name__}: {error}") from error
    attribute = getattr(attrs.fields(type(owner)), field)
    if callable(value):
        raise ConfigError(field, given, "the function returned another function; return the value")
    if attribute.validator is not None:
        attribute.validator(owner, attribute, value)
    return value


def _listed(table: dict[str, Any] | None) -> list[str]:
    """Return *table* as One Logger exports it: ``key:value``, one text each."""
    return [f"{key}:{value}" for key, value in (table or {}).items()]


@suggests_settings()
@attrs.frozen(kw_only=True)
class TrainingConfig:
    """
    The training: the values from which the metrics of its loops are computed.

    A field that is not known yet may be a function of no arguments, which is called when the training's configuration
    is published.

    Raises:
        ConfigError: if a field is invalid; the error names the field, the value and a remedy.
    """

    perf_tag: OrFunction[str | list[str]] = attrs.field(
        validator=_Check(
            lambda given: (
                _is_text(given) or (isinstance(given, (list, tuple)) and len(given) > 0 and all(map(_is_text, given)))
            ),
            "give text that is not blank, or a list of such",
            or_function=True,
        )
    )
    """Runs with the same tags are expected to perform alike: same model, data, hardware and software."""
    global_batch_size: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    """Samples per training iteration over all ranks. None if it varies: then each iteration gives its own."""
    micro_batch_size: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    seq_length: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    """Tokens per sample."""
    flops_per_sample: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    """Floating-point operations that one sample takes."""
    peak_flops_per_s: float | None = attrs.field(
        default=None, validator=_Check(_is_positive, "give a number above 0", or_none=True)
    )
    """The peak of one rank's accelerator in floating-point operations per second; the MFU needs it."""
    train_iterations_target: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    train_samples_target: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    log_every_n_train_iterations: int | None = attrs.field(default=None, validator=_COUNT_OR_NONE)
    """
    Iterations between two updates of the training metrics. None stands for 50, as in One Logger, or for the next
    multiple of 50 at which these iterations took a second together.
    """
    is_train_iterations_enabled: OrFunction[bool] = attrs.field(default=True, validator=_FLAG_OR_FUNCTION)
    """A label, like the next three: whether the job does this. It switches nothing."""
    is_validation_iterations_enabled: OrFunction[bool] = attrs.field(default=True, validator=_FLAG_OR_FUNCTION)
    is_test_iterations_enabled: OrFunction[bool] = attrs.field(default=True, validator=_FLAG_OR_FUNCTION)
    is_save_checkpoint_enabled: OrFunction[bool] = attrs.field(default=True, validator=_FLAG_OR_FUNCTION)
    is_log_throughput_enabled: OrFunction[bool] = attrs.field(default=False, validator=_FLAG_OR_FUNCTION)
    """Whether throughput is wanted; it needs *flops_per_sample*."""
    save_checkpoint_strategy: str = attrs.field(default="sync", validator=_one_of("sync", "async"))
    custom_metadata: dict[str, Any] | None = attrs.field(default=None, validator=_METADATA)

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
        tag = _resolved("perf_tag", self.perf_tag, owner=self)
        return (tag,) if isinstance(tag, str) else tuple(tag)

    def resolved(self) -> TrainingConfig:
        """
        Return a copy with every function replaced by its result.

        Raises:
            ConfigError: if a function raises, or returns an invalid value.
        """
        values = {
            field.name: _resolved(field.name, getattr(self, field.name), owner=self)
            for field in attrs.fields(type(self))
        }
        return TrainingConfig(**values)

    def configured(self) -> TrainingConfigured:
        """
        Return the event that records the configuration.

        Raises:
            ConfigError: as `resolved`.
        """
        known = attrs.asdict(self.resolved(), recurse=False)
        known["perf_tag"] = [known["perf_tag"]] if isinstance(known["perf_tag"], str) else list(known["perf_tag"])
        known["checkpoint_strategy"] = known.pop("save_checkpoint_strategy")
        known["custom_metadata"] = _listed(known["custom_metadata"])
        return TrainingConfigured(**known)

    def defaults(self) -> TrainingDefaults:
        """
        Return the defaults of loops and saves.

        Raises:
            ConfigError: as `resolved`.
        """
        known = attrs.asdict(self.resolved(), recurse=False)
        return TrainingDefaults(**{field.name: known[field.name] for field in attrs.fields(TrainingDefaults)})


LOGGER: Final = logging.getLogger("trackside")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@suggests_settings()
@attrs.frozen(kw_only=True)
class LogConfig:
    """
    The logging of trackside's own messages; they go through the standard library's logger ``trackside``.

    Raises:
        ConfigError: if a field is invalid.
    """

    log_level: str = attrs.field(default="INFO", validator=_one_of(*LEVELS))
    """The lowest level that is logged."""
    log_format: str = attrs.field(default="%(name)s - %(levelname)s - %(message)s", validator=_TEXT)
    log_file_path_for_info: str | None = attrs.field(default=None, validator=_TEXT_OR_NONE)
    """A file for all messages; none unless given."""
    log_file_path_for_err: str | None = attrs.field(default=None, validator=_TEXT_OR_NONE)
    """A file for errors; none unless given."""

    def apply(self) -> list[logging.Handler]:
        """
        Set the level and add a handler for each file.

        Returns:
            The handlers, so that the caller can remove them again.

        Raises:
            ConfigError: if a file cannot be written.
        """
        LOGGER.setLevel(self.log_level)
        added: list[logging.Handler] = []
        for field, level in (("log_file_path_for_info", logging.DEBUG), ("log_file_path_for_err", logging.ERROR)):
            path = getattr(self, field)
            if path is None:
                continue
            try:
                handler = logging.FileHandler(path, encoding="utf-8")
            except OSError as error:
                raise ConfigError(field, path, f"give a path that can be written: {error}") from None
            handler.setLevel(level)
            handler.setFormatter(logging.Formatter(self.log_format))
            LOGGER.addHandler(handler)
            added.append(handler)
        return added


@attrs.frozen(kw_only=True)
class Preset:
    """
    Arguments of `subscribe` for a handler; events that they leave out are not built unless another handler wants them.

    ::

        trackside.subscribe(sink, **PRESETS["per_step"].arguments())
    """

    min_priority: Priority
    """The lowest priority."""
    keep: Rule | None
    """The rule for events of this priority or above."""

    def arguments(self, keep: Rule | None = None) -> dict[str, Any]:
        """Return the arguments for `subscribe`, with *keep* as a further rule that must hold."""
        rules = [rule for rule in (self.keep, keep) if rule is not None]
        return {
            "min_priority": self.min_priority,
            "keep": all_of(*rules) if len(rules) > 1 else rules[0] if rules else None,
        }


def _is_span_or_rarer(event: Event) -> bool:
    return event.priority > PROFILE or isinstance(event, ProfileSpanEnded)


PRESETS: Final = {
    # Everything except the spans of iterations and of their parts, like One Logger's default.
    "default": Preset(min_priority=ITERATION, keep=without_spans(*span_names.PER_STEP, *span_names.WITHIN_STEP)),
    # Iterations too.
    "per_step": Preset(min_priority=ITERATION, keep=without_spans(*span_names.WITHIN_STEP)),
    # Also the spans of their parts, but no other events that occur several times a step.
    "profiling": Preset(min_priority=PROFILE, keep=where(_is_span_or_rarer)),
    "all": Preset(min_priority=PROFILE, keep=None),
}


def preset(name: str) -> Preset:
    """
    Return the preset called *name*.

    Raises:
        ConfigError: if there is none.
    """
    try:
        return PRESETS[name]
    except (KeyError, TypeError):
        known = ", ".join(f'"{word}"' for word in PRESETS)
        raise ConfigError("preset", name, f"give one of {known}") from None


Ranks: TypeAlias = str | int | Collection[int] | Callable[[int], bool]
"""Some of a job's ranks: ``"all"``, ``"none"``, ``"0,8-15"``, ``"0-127/8"``, numbers, or a function of the rank."""

_PART: Final = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(/(?P<stride>[1-9]\d*))?)?")
_REMEDY: Final = 'give "all", "none", ranks as in "0,8-15" or "0-127/8", numbers, or a function of the rank'


def is_among(rank: int, ranks: Ranks, *, field: str = "ranks") -> bool:
    """
    Return whether *rank* is one of *ranks*.

    Args:
        rank: The global rank.
        ranks: The set of ranks.
        field: The name of the set in an error.

    Raises:
        ConfigError: if *ranks* is not a valid set of ranks.
    """
    if callable(ranks):
        return bool(ranks(rank))
    if isinstance(ranks, str):
        return any(rank in part for part in _parts(ranks, field))
    if _is_rank(ranks):
        return rank == ranks
    if isinstance(ranks, Collection) and all(map(_is_rank, ranks)):
        return rank in ranks
    raise ConfigError(field, ranks, _REMEDY)


def _parts(text: str, field: str) -> list[Collection[int]]:
    if text.strip() == "none":
        return []
    if text.strip() == "all":
        return [range(2**31)]
    parts: list[Collection[int]] = []
    for word in text.split(","):
        found = _PART.fullmatch(word.strip())
        if found is None:
            raise ConfigError(field, text, _REMEDY)
        first = int(found["first"])
        last = int(found["last"] or first)
        if last < first:
            raise ConfigError(field, text, f"{last} comes before {first}; {_REMEDY}")
        parts.append(range(first, last + 1, int(found["stride"] or 1)))
    return parts


def _is_rank(given: Any) -> bool:
    return _is_whole(given) and given >= 0


ANNOTATIONS = ("", "record_function", "nvtx")


@suggests_settings()
@attrs.frozen(kw_only=True)
class RankHandler:
    """A handler that only some ranks have."""

    make: Callable[[], Any]
    """Makes the handler; called only on those ranks."""
    ranks: Ranks = "all"
    to: EventTypes = Event
    preset: str = "all"
    """The share of the events that it gets: ``default``, ``per_step``, ``profiling`` or ``all``."""
    keep: Rule | None = None
    """A further rule that must hold."""

    def __attrs_post_init__(self) -> None:
        if not callable(self.make):
            raise ConfigError("make", self.make, "give a function that makes the handler")
        is_among(0, self.ranks)
        preset(self.preset)


@suggests_settings(training=TrainingConfig, log=LogConfig)
@attrs.frozen(kw_only=True)
class JobConfig:
    """
    The job: its names and tags, its run and session, and the settings of its telemetry.

    ::

        job = JobConfig(application_name="charlm", session_tag="charlm-2026-10", training=TrainingConfig(...))
        with trackside.start("runs/", job=job):
            train()

    A field that is not known yet may be a function of no arguments, which is called when telemetry starts.

    Raises:
        ConfigError: if a field is invalid; the error names the field, the value and a remedy.
    """

    application_name: str = attrs.field(validator=_TEXT)
    session_tag: OrFunction[str] = attrs.field(
        default="",
        validator=_Check(lambda given: given == "" or _is_text(given), "give text that is not blank", or_function=True),
    )
    """The same for all runs that are one logical task: restarts, and runs that continue from their checkpoints."""
    world_size: OrFunction[int | None] = attrs.field(default=None, validator=_COUNT_LATER)
    """The number of ranks, if the launcher's variables do not have it."""
    is_baseline_run: OrFunction[bool] = attrs.field(default=False, validator=_FLAG_OR_FUNCTION)
    """Whether others are compared with this run."""
    run_id: str | None = attrs.field(default=None, validator=_TEXT_OR_NONE)
    """The id of one launch, with one or more attempts; the launcher's unless given."""
    rank: int | None = attrs.field(default=None, validator=_INDEX)
    local_rank: int | None = attrs.field(default=None, validator=_INDEX)
    attempt: int | None = attrs.field(default=None, validator=_INDEX)
    custom_metadata: dict[str, Any] | None = attrs.field(default=None, validator=_METADATA)
    """Further values to keep with the run."""
    summary_data_schema_version: str = attrs.field(default="1.0.0", validator=_TEXT)
    training: TrainingConfig | None = attrs.field(default=None, validator=_instance_of(TrainingConfig))
    """The training; it may come later, once, through `set_training_config`."""

    strict: bool = attrs.field(default=False, validator=_FLAG)
    """
    Raise the errors of handlers, and errors in the order of spans, into the training; for development.

    A span that ends before a span inside it, or is left open, is only reported, and ends.

    If this is false, nothing is raised: there is one notice, and the counts show the rest.
    """
    enable_for_current_rank: OrFunction[bool] = attrs.field(default=True, validator=_FLAG_OR_FUNCTION)
    """Whether this rank takes part. If not, every instrument costs next to nothing."""
    disabled_ranks: Ranks = "none"
    """Ranks that do not take part."""
    handlers: Sequence[RankHandler] = ()
    """Handlers that only some ranks have."""
    annotate: str = attrs.field(default="", validator=_one_of(*ANNOTATIONS))
    """Show spans in torch's profiler (``record_function``) or in Nsight (``nvtx``) as well."""
    log: LogConfig | None = attrs.field(default=None, validator=_instance_of(LogConfig))
    """The destination of trackside's own messages; nothing is changed unless given."""

    def __attrs_post_init__(self) -> None:
        is_among(0, self.disabled_ranks, field="disabled_ranks")
        for handler in self.handlers:
            if not isinstance(handler, RankHandler):
                raise ConfigError("handlers", handler, "give RankHandler(make=…, ranks=…)")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> JobConfig:
        """
        Read a configuration from a TOML file.

        The file's keys are the fields; ``training`` and ``log`` are tables. Functions and *handlers* exist only in
        Python, and cannot be in the file.

        Raises:
            UnreadableError: if there is no such file, or it is no TOML.
            ConfigError: if a key is unknown, a required one is missing, or a value is invalid.
        """
        return structured(read_toml(path), cls, where=os.fspath(path))

    def source_fields(self) -> dict[str, Any]:
        """
        Return the fields of the process's `Source` that are set here, as arguments of `Source.detect`.

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
            ConfigError: if the function that was given for that raises, or returns a value that is wrong.
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
            custom_metadata=_listed(self.custom_metadata),
        )

    def subscribe_handlers(self, rank: int, bus: Bus = default_bus) -> list[Subscription]:
        """
        Make and subscribe the handlers of *rank*.

        Raises:
            ConfigError: if one of them cannot be subscribed.
        """
        chosen = [handler for handler in self.handlers if is_among(rank, handler.ranks)]
        return [
            bus.subscribe(handler.make(), to=handler.to, **preset(handler.preset).arguments(handler.keep))
            for handler in chosen
        ]

    def _resolved(self, field: str) -> Any:
        return _resolved(field, getattr(self, field), owner=self)


if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    loads: Callable[[str], dict[str, Any]] | None = None


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Return the content of the TOML file at *path*.

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
    Return *data* as an object of *cls*.

    Raises:
        ConfigError: if a key is unknown, a required one is missing, or a value is invalid.
    """
    for name, hint in get_type_hints(cls).items():
        if any(map(attrs.has, get_args(hint))) and not isinstance(data.get(name, {}), (dict, list)):
            raise ConfigError(name, data[name], "give a table")
    try:
        return _converter.structure(data, cls)
    except cattrs.ForbiddenExtraKeysError as error:
        unknown = sorted(error.extra_fields)
        known = [field.name for field in attrs.fields(error.cl)]
        meant = list(filter(None, (nearest(name, known) for name in unknown)))
        remedy = (
            f"did you mean {', '.join(meant)}?"
            if meant
            else f"known keys of {error.cl.__name__} are {', '.join(known)}"
        )
        raise ConfigError(where, ", ".join(unknown), remedy) from None
    except KeyError as error:
        raise ConfigError(str(error.args[0]), None, f"{where} has to give it") from None


def _takes_anything_else(hint: Any) -> bool:
    """Return whether *hint* allows a function, or is a union of plain types: the class's validators check those."""
    return get_origin(hint) in (Union, UnionType, Callable, Collection, Sequence) and not any(
        attrs.has(option) for option in get_args(hint)
    )


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_converter.register_structure_hook_func(_takes_anything_else, lambda value, _: value)
for _plain in (str, int, float, bool):
    # cattrs would convert 8 to the text "8", but a wrong type must be an error.
    _converter.register_structure_hook(_plain, lambda value, _: value)

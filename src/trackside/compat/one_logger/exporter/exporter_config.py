"""Exporters named in a configuration."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.compat.one_logger.exporter.file_exporter import FileExporter
from trackside.compat.one_logger.exporter.logger_exporter import LoggerExporter

VARIABLE: Final = "ONE_LOGGER_EXPORTER_CONFIG_PATH"
FILE_NAME: Final = "one_logger_exporters_config.json"


@attrs.define
class ExporterConfig:
    """An exporter: its class or the class's name, its arguments, and whether it is enabled."""

    class_name: str | type[Exporter]
    config: dict[str, Any] = attrs.field(factory=dict)
    enabled: bool = True

    @property
    def key(self) -> str:
        """The key of an exporter: the name of the class, without its module."""
        name = self.class_name if isinstance(self.class_name, str) else self.class_name.__name__
        return name.rpartition(".")[2]

    def make(self) -> Exporter:
        """
        Return the exporter, not initialized yet.

        No class is imported by its name: a class that is not trackside's must be given itself.

        Raises:
            OneLoggerError: if the class is not known, or does not accept the arguments.
        """
        known = _KNOWN.get(self.key) if isinstance(self.class_name, str) else self.class_name
        if known is None:
            raise OneLoggerError(
                f"no exporter {self.class_name!r}: give one of {', '.join(_KNOWN)}, or the class itself"
            )
        try:
            return known(**self.config)
        except Exception as error:
            raise OneLoggerError(f"{self.key} cannot be made with {self.config}: {error}") from error


def _logger_exporter(logger: str | logging.Logger = "") -> LoggerExporter:
    return LoggerExporter(logging.getLogger(logger) if isinstance(logger, str) else logger)


_KNOWN: Final[dict[str, Any]] = {"FileExporter": FileExporter, "LoggerExporter": _logger_exporter}


def exporters_from(
    given: Sequence[ExporterConfig | Mapping[str, Any]] | None, path: str | os.PathLike[str] | None
) -> list[Exporter]:
    """
    Return the exporters of a file and of the list *given*, which takes precedence: entries of one class are merged.

    The file is *path*, else the one that the variable ONE_LOGGER_EXPORTER_CONFIG_PATH names, else
    one_logger_exporters_config.json in the current directory, if it exists.

    Raises:
        OneLoggerError: if a file that was named cannot be read, or an exporter cannot be made.
    """
    chosen: dict[str, ExporterConfig] = {}
    for config in (*_of_file(path), *_configs(given or ())):
        below = chosen.get(config.key)
        if below is not None:
            config = attrs.evolve(config, config={**below.config, **config.config})  # noqa: PLW2901
        chosen[config.key] = config
    return [config.make() for config in chosen.values() if config.enabled]


def _of_file(path: str | os.PathLike[str] | None) -> list[ExporterConfig]:
    named = path or os.environ.get(VARIABLE)
    if named is None and not Path(FILE_NAME).exists():
        return []
    found = Path(named or FILE_NAME)
    try:
        entries = json.loads(found.read_text(encoding="utf-8"))["exporters"]
        return list(_configs(entries))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OneLoggerError(f"{found} is no JSON file with a list of exporters: {error!r}") from error


def _configs(entries: Iterable[ExporterConfig | Mapping[str, Any]]) -> Iterable[ExporterConfig]:
    for entry in entries:
        yield entry if isinstance(entry, ExporterConfig) else ExporterConfig(**entry)

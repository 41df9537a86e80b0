"""Spans and events as lines of a logger."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

from trackside.compat.one_logger.exporter.base_json_exporter import BaseJsonExporter


class LoggerExporter(BaseJsonExporter):
    """Logs each record to *logger* at level INFO, as ``[key=value | outer.inner=value | …]``; values are JSON."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def _write(self, json_dict: dict[str, Any]) -> None:
        pairs = sorted(_flat(json_dict), reverse=True)
        self._logger.info("[%s]", " | ".join(f"{key}={json.dumps(value)}" for key, value in pairs))


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

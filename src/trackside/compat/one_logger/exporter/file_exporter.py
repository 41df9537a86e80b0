"""Spans and events in a file, a line of JSON each."""

from __future__ import annotations

import json
import os
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from trackside.compat.one_logger.exporter.base_json_exporter import BaseJsonExporter
from trackside.compat.one_logger.exporter.exporter import ExportError


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class FileExporter(BaseJsonExporter):
    """
    Appends to *file_path*, so that a job that is started again keeps its earlier records.

    The file, and the directory that it lies in, are made for this user alone.

    Raises:
        ExportError: at `initialize`, if the file cannot be opened.
    """

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = Path(file_path)
        self._file: TextIOWrapper | None = None

    def initialize(self) -> None:
        """Open the file, making the directories that it lies in."""
        super().initialize()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(self._path, "a", encoding="utf-8", opener=_open_private)  # noqa: SIM115  it stays open
        except OSError as error:
            raise ExportError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, json_dict: dict[str, Any]) -> None:
        if self._file is None:
            raise ExportError("the file is not open")
        self._file.write(json.dumps(json_dict, separators=(",", ":")) + "\n")
        self._file.flush()

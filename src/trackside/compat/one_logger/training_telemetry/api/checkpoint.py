"""The ways to save a checkpoint."""

from __future__ import annotations

from trackside.compat.one_logger._enums import StrEnum


class CheckPointStrategy(StrEnum):
    """Whether a save blocks training until it is complete."""

    SYNC = "sync"
    ASYNC = "async"


class CheckPointType(StrEnum):
    """The storage of a checkpoint."""

    GLOBAL = "global"
    LOCAL = "local"

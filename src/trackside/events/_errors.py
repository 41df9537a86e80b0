"""
The errors that trackside raises at configuration and on reading.

::

    TracksideError
    ├── ConfigError            a setting is wrong: field, what was given, what is right
    ├── DuplicateEventError    two classes claim one wire name
    ├── DecodeError            bytes that cannot be decoded
    ├── UnreadableError        a file or endpoint that cannot be read at all
    └── MissingExtraError      a library that an extra installs is missing; an ImportError too

Nothing here is raised into a training loop unless its bus is strict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class TracksideError(Exception):
    """The root of every error of this library."""


class ConfigError(TracksideError):
    """A setting is wrong."""

    def __init__(self, field: str, given: object, remedy: str) -> None:
        super().__init__(field, given, remedy)
        self.field = field
        self.given = given
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.field}: got {self.given!r}; {self.remedy}"


class DuplicateEventError(TracksideError):
    """Two event classes claim the same wire name."""

    def __init__(self, name: str, first: type, second: type) -> None:
        super().__init__(name, first, second)
        self.name = name
        self.first = first
        self.second = second

    def __str__(self) -> str:
        return (
            f"{self.second.__module__}.{self.second.__qualname__} wants the wire name {self.name!r}, "
            f"which {self.first.__module__}.{self.first.__qualname__} has; choose another name"
        )


class DecodeError(TracksideError):
    """Bytes cannot be decoded; they are counted and dropped."""


class UnreadableError(TracksideError):
    """A file or an endpoint cannot be read at all."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(where, what, remedy)
        self.where = where
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


class MissingExtraError(TracksideError, ImportError):
    """A library that one of trackside's extras installs is missing."""

    def __init__(self, feature: str, extra: str, error: ImportError | None = None) -> None:
        super().__init__(feature, extra, error)
        self.feature = feature
        """The part of trackside that needs the library."""
        self.extra = extra
        self.name: str | None = error.name if error is not None else None
        self._problem = str(error) if error is not None else ""

    def __str__(self) -> str:
        problem = f" ({self._problem})" if self._problem else ""
        return f"{self.feature} needs an extra{problem}; run pip install 'trackside[{self.extra}]'"


@contextlib.contextmanager
def needing_extra(feature: str, extra: str) -> Iterator[None]:
    """
    Run a block that imports the libraries of *extra*.

    Args:
        feature: The part of trackside that needs them.
        extra: The name of the extra.

    Raises:
        MissingExtraError: a library is missing, or lacks a name that is imported from it.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(feature, extra, error) from error

"""The error of this package, the base of trackside's errors."""

from __future__ import annotations

from trackside.events import TracksideError

OneLoggerError = TracksideError
"""The same class, so that code that catches One Logger's errors catches trackside's."""


def assert_that(condition: object, message: str) -> None:
    """
    Raise unless *condition* holds.

    Raises:
        OneLoggerError: with *message*.
    """
    if not condition:
        raise OneLoggerError(message)

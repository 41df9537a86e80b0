"""The error of this package: whatever trackside raises."""

from __future__ import annotations

from trackside.events import TracksideError

OneLoggerError = TracksideError
"""So that what catches One Logger's errors catches ours."""


def assert_that(condition: object, message: str) -> None:
    """
    Raise unless *condition* holds.

    Raises:
        OneLoggerError: with *message*.
    """
    if not condition:
        raise OneLoggerError(message)

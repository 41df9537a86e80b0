"""Configuration classes that take what One Logger's initialize, and say what they make of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from trackside.compat.one_logger.core.exceptions import OneLoggerError

LOGGER = logging.getLogger("trackside")

T = TypeVar("T")


def initialize(settings: Any, given: Mapping[str, Any]) -> None:
    """
    Initialize *settings* with *given*; a name that it does not know is passed over, with a word in the log.

    Raises:
        OneLoggerError: if a field that is needed is missing, or one is not what it should be.
    """
    fields = attrs.fields_dict(type(settings))
    strange = sorted(set(given).difference(fields))
    if strange:
        LOGGER.warning("%s has no field %s; passed over", type(settings).__name__, ", ".join(strange))
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in given]
    if missing:
        raise OneLoggerError(f"{type(settings).__name__} needs {', '.join(missing)}")
    known = {name: value for name, value in given.items() if name in fields}
    try:
        settings.__attrs_init__(**known)
    except ValueError as error:  # no member of an enum
        raise OneLoggerError(f"{type(settings).__name__}: {error}") from None


def resolved(value: T | Callable[[], T]) -> T:
    """Return *value*, or what it says if it is a function."""
    return value() if callable(value) else value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables in one; *above* wins, and tables within them are merged alike."""
    result = dict(below)
    for name, value in above.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result

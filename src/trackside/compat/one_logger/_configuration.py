"""Configuration classes with the arguments of One Logger's, and their conversion to trackside's."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from trackside.compat.one_logger.core.exceptions import OneLoggerError

if TYPE_CHECKING:
    from typing_extensions import Self

LOGGER = logging.getLogger("trackside")

T = TypeVar("T")


def initialize(settings: Any, given: Mapping[str, Any]) -> None:
    """
    Initialize *settings* with *given*; an unknown name is ignored, with a line in the log.

    Raises:
        OneLoggerError: if a required field is missing, or a value is wrong.
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
    except ValueError as error:  # not a member of the enum
        raise OneLoggerError(f"{type(settings).__name__}: {error}") from None


class Settings:
    """A configuration with the methods of pydantic's models that jobs call on the peer's configurations."""

    __slots__ = ()

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """
        Return the configuration that the mapping *obj* describes; if *obj* is a configuration, return it as it is.

        Raises:
            OneLoggerError: if a field is missing or wrong.
        """
        return obj if isinstance(obj, cls) else cls(**obj)

    def model_dump(
        self, *, include: Container[str] | None = None, exclude: Container[str] = (), exclude_none: bool = False
    ) -> dict[str, Any]:
        """Return the fields as a dictionary; configurations within it become dictionaries, too."""
        table = {
            name: value.model_dump(exclude_none=exclude_none) if isinstance(value, Settings) else value
            for name, value in self._fields().items()
            if (include is None or name in include) and name not in exclude
        }
        return {name: value for name, value in table.items() if not exclude_none or value is not None}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """
        Return a copy with the fields of *update* in it; *deep* copies the values of the other fields, too.

        Raises:
            OneLoggerError: if a field of *update* is wrong.
        """
        fields = self._fields()
        return type(self)(**{**(copy.deepcopy(fields) if deep else fields), **(update or {})})

    def _fields(self) -> dict[str, Any]:
        kind: Any = type(self)
        return {field.name: getattr(self, field.name) for field in attrs.fields(kind) if field.name != "given"}


def resolved(value: T | Callable[[], T]) -> T:
    """Return *value*, or its result if it is a function."""
    return value() if callable(value) else value


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables merged; *above* takes precedence, and tables within them are merged in the same way."""
    result = dict(below)
    for name, value in above.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result

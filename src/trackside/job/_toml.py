"""Configurations from TOML files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs

from trackside.events import ConfigError, UnreadableError

if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    loads: Callable[[str], dict[str, Any]] | None = None

T = TypeVar("T")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Return what the TOML file at *path* says.

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
    Return *data* as a *cls*.

    Raises:
        ConfigError: if a key is unknown, one that is needed is missing, or a value is not what it should be.
    """
    for name, hint in get_type_hints(cls).items():
        if any(map(attrs.has, get_args(hint))) and not isinstance(data.get(name, {}), (dict, list)):
            raise ConfigError(name, data[name], "give a table")
    try:
        return _converter.structure(data, cls)
    except cattrs.ForbiddenExtraKeysError as error:
        unknown = ", ".join(sorted(error.extra_fields))
        known = ", ".join(field.name for field in attrs.fields(error.cl))
        raise ConfigError(where, unknown, f"known keys of {error.cl.__name__} are {known}") from None
    except KeyError as error:
        raise ConfigError(str(error.args[0]), None, f"{where} has to give it") from None


def _takes_anything_else(hint: Any) -> bool:
    """Return whether *hint* allows a function, or is a union of plain types: the class's validators look at those."""
    return get_origin(hint) in (Union, UnionType, Callable, Collection, Sequence) and not any(
        attrs.has(option) for option in get_args(hint)
    )


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_converter.register_structure_hook_func(_takes_anything_else, lambda value, _: value)
for _plain in (str, int, float, bool):
    # cattrs would make the text "8" of an 8, and a wrong type must show.
    _converter.register_structure_hook(_plain, lambda value, _: value)

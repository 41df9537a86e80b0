"""
Plain data to declared types.

Strict where cattrs is lenient: it would make the text "7" of a 7, or a list of letters of a text, and a wrong type
must show.
"""

from __future__ import annotations

import datetime
import functools
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import cattrs

SCALARS: Final = (bool, int, float, str, bytes, type(None))
_CONTAINERS: Final = (list, dict, tuple, set, frozenset)


@functools.cache
def converter() -> cattrs.Converter:
    """Return what turns attrs objects into plain data, and plain data into whatever is no scalar or container."""
    import pathlib  # noqa: PLC0415  as for cattrs

    import cattrs  # noqa: PLC0415  an eighth of what importing us would cost, and few events need it

    made = cattrs.Converter(detailed_validation=False)
    for scalar in SCALARS[:-1]:
        made.register_structure_hook(scalar, _exact)
    made.register_structure_hook(datetime.datetime, lambda text, _: datetime.datetime.fromisoformat(text))
    made.register_structure_hook(datetime.date, lambda text, _: datetime.date.fromisoformat(text))
    made.register_structure_hook(datetime.timedelta, lambda seconds, _: datetime.timedelta(seconds=seconds))
    made.register_structure_hook(pathlib.PurePath, lambda text, kind: kind(_exact(text, str)))
    made.register_structure_hook_func(_is_ours, structured)
    return made


def structured(value: Any, hint: Any) -> Any:
    """
    Return *value*, as read from the wire, as *hint* asks for it.

    Raises:
        Exception: of whatever kind if it is not, and cannot stand for, such a value.
    """
    if hint is Any or hint is object:
        return value
    if hint in SCALARS:
        return _exact(value, hint)
    if is_union(hint):
        return _one_of(value, typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind in _CONTAINERS:
        return _contained(value, kind, typing.get_args(hint))
    return _converted(value, hint)


def _converted(value: Any, hint: Any) -> Any:
    from cattrs.errors import StructureHandlerNotFoundError  # noqa: PLC0415  as in `converter`

    try:
        return converter().structure(value, hint)
    except StructureHandlerNotFoundError:  # NumPy's scalars, a library's own class: it is read as it was written
        return value


def is_union(hint: Any) -> bool:
    """Return whether *hint* is a union of types, ``X | None`` included."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _exact(value: Any, kind: Any) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind not in SCALARS:  # a class derived from one: an enum of texts, a kind of number
        return kind(value)
    raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")


def _one_of(value: Any, options: Sequence[Any]) -> Any:
    if type(value) in options:
        return value
    for option in options:
        try:
            return structured(value, option)
        except Exception:  # noqa: S112  the next option may fit
            continue
    raise TypeError(f"a {type(value).__name__} where one of {options} belongs")


def _contained(value: Any, kind: Any, options: Sequence[Any]) -> Any:
    found = type(value)
    if found is not (dict if kind is dict else list):
        raise TypeError(f"a {found.__name__} where a {kind.__name__} belongs")
    if not options:
        return kind(value)
    if kind is dict:
        return {_key(key, options[0]): structured(entry, options[1]) for key, entry in value.items()}
    if kind is tuple and options[1:] != (Ellipsis,):
        return tuple(structured(entry, option) for entry, option in zip(value, options, strict=True))
    return kind(structured(entry, options[0]) for entry in value)


def _key(key: str, hint: Any) -> Any:
    # Keys are texts on the wire, whatever they were.
    return int(key) if hint is int else structured(key, hint)


def _is_ours(hint: Any) -> bool:
    return is_union(hint) or typing.get_origin(hint) in _CONTAINERS

"""Values from the wire as the types that fields are declared with, and objects of attrs classes from their values."""

from __future__ import annotations

import copy
import datetime
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from trackside.events._fields import SCALARS, STAMPS, fields_in, hints_of, is_union
from trackside.wire._values import mended, pack

if TYPE_CHECKING:
    import cattrs

T = TypeVar("T")

_CONTAINERS: Final = (list, dict, tuple, set, frozenset)


@functools.cache
def _structuring() -> cattrs.Converter:
    """Return the converter of plain data to attrs objects, or other types that are no scalar or container."""
    import pathlib  # noqa: PLC0415  importing these would be an eighth of importing us, and few events need them

    import cattrs  # noqa: PLC0415

    made = cattrs.Converter(detailed_validation=False)
    for scalar in SCALARS[:-1]:
        made.register_structure_hook(scalar, _exact)
    made.register_structure_hook(datetime.datetime, lambda text, _: datetime.datetime.fromisoformat(text))
    made.register_structure_hook(datetime.date, lambda text, _: datetime.date.fromisoformat(text))
    made.register_structure_hook(datetime.timedelta, lambda seconds, _: datetime.timedelta(seconds=seconds))
    made.register_structure_hook(pathlib.PurePath, lambda text, kind: kind(_exact(text, str)))
    made.register_structure_hook_func(_is_ours, structured)
    made.register_structure_hook_func(_has_converters, lambda value, kind: rebuilt(kind, value, hints_of(kind)))
    return made


def structured(value: Any, hint: Any) -> Any:
    """
    Convert *value*, as read from the wire, to the type *hint*.

    Raises:
        Exception: of any class, if *value* is not of this type and cannot be converted to it.
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
    from cattrs.errors import StructureHandlerNotFoundError  # noqa: PLC0415  as in `_structuring`

    try:
        return _structuring().structure(value, hint)
    except StructureHandlerNotFoundError:  # NumPy's scalars, a library's own class: it is read as it was written
        return value


def _exact(value: Any, kind: Any) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind not in SCALARS:  # a class derived from a scalar: an enum of texts, a kind of number
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
    # Keys are texts on the wire, whatever type they had.
    return int(key) if hint is int else structured(key, hint)


def _is_ours(hint: Any) -> bool:
    return is_union(hint) or typing.get_origin(hint) in _CONTAINERS


def _has_converters(hint: Any) -> bool:
    return isinstance(hint, type) and attrs.has(hint) and any(field.converter is not None for field in fields_in(hint))


def rebuilt(cls: type[T], wire: Mapping[str, Any], hints: Mapping[str, Any]) -> T:
    """
    Build an object of an attrs class from the values that it had: no converter and no initializer changes them again.

    Its validators are called. So is ``__attrs_post_init__`` if it may set something else: a field that is not in
    *wire*, or an attribute that is no field.

    Args:
        cls: The class.
        wire: The values of its fields, as read from the wire. The others get what the initializer would set.
        hints: The types of these fields.

    Raises:
        Exception: of any class, if the values are not of these types, or the class does not accept them.
    """
    if not isinstance(wire, Mapping):
        raise TypeError(f"a {type(wire).__name__} where the fields of a {cls.__name__} belong")
    made = object.__new__(cls)
    fields = fields_in(cls)
    given = {field.name: structured(wire[field.name], hints[field.name]) for field in fields if field.name in wire}
    _set_all(made, given)
    for field in fields:
        if field.name not in given:
            object.__setattr__(made, field.name, _initial(field, made))
        elif field.converter is not None:
            given[field.name] = _as_converted(field, given[field.name], wire[field.name], made)
    _set_all(made, given)
    post: Callable[[T], None] | None = getattr(cls, "__attrs_post_init__", None)
    if post is not None and (len(given) < len(fields) or _has_room(cls)):  # type: ignore[arg-type]  # classes are hashable
        given = copy.deepcopy(given)  # it may change what a field holds
        post(made)
        _set_all(made, given)
    attrs.validate(made)  # type: ignore[arg-type]
    return made


def _set_all(made: object, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _initial(field: attrs.Attribute[Any], made: object) -> Any:
    """Return what the initializer of *made* would set a *field* to that it is not given."""
    value: Any = field.default
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]  # a class, to attrs
        value = value.factory(made) if value.takes_self else value.factory()
    if value is attrs.NOTHING:
        raise TypeError(f"the field {field.name!r} is missing")
    return value if field.converter is None else _converted_by(field, value, made)


def _as_converted(field: attrs.Attribute[Any], value: Any, written: Any, made: object) -> Any:
    """
    Return *value* in the type that the converter of its *field* makes, if that is written the same, else as it is.

    The declared type does not always tell: `Any` may be a tuple, and a library's own number is read as a float.
    """
    try:
        converted = _converted_by(field, value, made)
        is_same = pack(mended(converted)[0]) == pack(written)
    except Exception:  # it was made for what the program gives
        return value
    return converted if is_same else value


def _converted_by(field: attrs.Attribute[Any], value: Any, made: object) -> Any:
    convert: Any = field.converter
    takes_more = isinstance(convert, getattr(attrs, "Converter", ()))  # which attrs has since 24.1
    return convert(value, made, field) if takes_more else convert(value)


@functools.cache
def _has_room(cls: Any) -> bool:
    """Return whether objects of *cls* may have attributes that are no fields."""
    slots = {name for base in cls.__mro__ for name in _slots_in(base)}
    known = {field.name for field in fields_in(cls)}
    return bool(cls.__dictoffset__ or slots.difference(known, STAMPS, ("__weakref__",)))


def _slots_in(cls: Any) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)

"""Validators of configuration fields; every refusal names the field, what was given and what is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import attrs

from trackside.events import ConfigError

T = TypeVar("T")

Check: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
OrFunction: TypeAlias = T | Callable[[], T]
"""A value, or a function of no arguments that returns it when it is needed."""


def _check(is_right: Callable[[Any], bool], remedy: str, *, or_function: bool) -> Check:
    def check(_instance: Any, field: attrs.Attribute[Any], given: Any) -> None:
        if or_function and callable(given):
            return
        if not is_right(given):
            raise ConfigError(field.name, given, remedy + (", or a function that returns it" if or_function else ""))

    return check


def text(*, or_function: bool = False) -> Check:
    """Require text that is not blank."""
    return _check(_is_text, "give text that is not blank", or_function=or_function)


def text_or_nothing(*, or_function: bool = False) -> Check:
    """Require text that is not blank, or none at all."""
    return _check(lambda given: given == "" or _is_text(given), "give text that is not blank", or_function=or_function)


def instance_of(cls: type) -> Check:
    """Require a *cls*."""
    return _check(lambda given: isinstance(given, cls), f"give a {cls.__name__}", or_function=False)


def flag(*, or_function: bool = False) -> Check:
    """Require True or False."""
    return _check(lambda given: isinstance(given, bool), "give True or False", or_function=or_function)


def count(*, or_function: bool = False, optional: bool = False) -> Check:
    """Require a whole number above 0."""
    return _check(
        lambda given: (optional and given is None) or (_is_whole(given) and given > 0),
        "give a whole number above 0",
        or_function=or_function,
    )


def index() -> Check:
    """Require a whole number from 0, or nothing."""
    return _check(
        lambda given: given is None or (_is_whole(given) and given >= 0),
        "give a whole number from 0",
        or_function=False,
    )


def positive() -> Check:
    """Require a finite number above 0, or nothing."""
    return _check(_is_positive, "give a number above 0", or_function=False)


def tags() -> Check:
    """Require a text that is not blank, or several."""
    return _check(
        lambda given: _is_text(given) or (_is_list(given) and bool(given) and all(map(_is_text, given))),
        "give text that is not blank, or a list of such",
        or_function=True,
    )


def metadata() -> Check:
    """Require a map from names that are not blank to text, numbers, flags or lists of such, or nothing."""
    return _check(
        lambda given: given is None or (isinstance(given, dict) and all(map(_is_text, given))),
        "give a map whose keys are text and not blank",
        or_function=False,
    )


def one_of(*allowed: str) -> Check:
    """Require one of some words."""
    remedy = "give " + " or ".join(f'"{word}"' for word in allowed)
    return _check(lambda given: isinstance(given, str) and given in allowed, remedy, or_function=False)


def resolved(field: str, given: OrFunction[Any], *, owner: Any) -> Any:
    """
    Return the value of *field*, calling the function that was given for it and checking what that returns.

    Raises:
        ConfigError: if the function raises, or returns a value that is wrong.
    """
    if not callable(given):
        return given
    try:
        value = given()
    except Exception as error:
        raise ConfigError(field, given, f"the function raised {type(error).__name__}: {error}") from error
    attribute = getattr(attrs.fields(type(owner)), field)
    if callable(value):
        raise ConfigError(field, given, "the function returned another function; return the value")
    if attribute.validator is not None:
        attribute.validator(owner, attribute, value)
    return value


def listed(table: dict[str, Any] | None) -> list[str]:
    """Return *table* as One Logger exports it: ``key:value``, one text each."""
    return [f"{key}:{value}" for key, value in (table or {}).items()]


def _is_text(given: object) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _is_list(given: object) -> bool:
    return isinstance(given, (list, tuple))


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_positive(given: object) -> bool:
    if given is None:
        return True
    return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given) and given > 0

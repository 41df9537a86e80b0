"""Checks for settings that do not exist, with suggestions of the ones that were probably meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from trackside.events._errors import ConfigError

C = TypeVar("C", bound=Callable[..., Any])


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word in *known* of which *word* is probably a misspelling; None if there is none."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return found[0] if found else None


def suggests_settings(**nested: type) -> Callable[[C], C]:
    """
    Make a function or a class raise `ConfigError` when it is called with a keyword that it does not have.

    The error names the nearest setting, or all settings if none is near.

    Args:
        nested: The class of each setting that is itself a configuration. The settings of these are suggested too.
    """

    def decorate(called: C) -> C:
        takes = called.__name__ if isinstance(called, type) else f"{called.__name__}()"
        check = settings_check(called, takes, nested)
        if not isinstance(called, type):
            return cast("C", _checked(called, check))
        called.__init__ = _checked(called.__init__, check)  # type: ignore[misc]  # it takes what it took
        return called

    return decorate


def settings_check(
    called: Callable[..., Any], takes: str, nested: dict[str, type] | None = None
) -> Callable[[dict[str, Any]], None]:
    """
    Return a function that raises `ConfigError` for keywords that *called* does not have.

    Args:
        called: A function or a class.
        takes: Its name in the error.
        nested: As for `suggests_settings`.
    """
    found = inspect.signature(called).parameters
    parameters = {name: one for name, one in found.items() if one.kind is not inspect.Parameter.VAR_KEYWORD}
    suggestions = dict(_settings_of(nested or {})) | {name: f"{name}=…" for name in parameters}
    names = [name for name in parameters if name != "self"]

    def check(settings: dict[str, Any]) -> None:
        if not settings.keys() <= parameters.keys():
            name = next(name for name in settings if name not in parameters)
            meant = nearest(name, suggestions)
            remedy = f"did you mean {suggestions[meant]}?" if meant else f"it has {', '.join(names)}"
            raise ConfigError(name, settings[name], f"{takes} has no such setting; {remedy}")

    return check


def _checked(function: Callable[..., Any], check: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        check(settings)
        return function(*args, **settings)

    return call


def _settings_of(nested: dict[str, type]) -> Iterator[tuple[str, str]]:
    """Yield each setting of the configurations *nested*, and the expression that gives it."""
    for setting, cls in nested.items():
        for name in inspect.signature(cls).parameters:
            yield name, f"{setting}={cls.__name__}({name}=…)"

"""Settings and variables of the environment that do not exist, and the ones that were probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

from trackside.core.text import nearest
from trackside.events import ConfigError

C = TypeVar("C", bound=Callable[..., Any])

_PREFIX: Final = "TRACKSIDE_"
_VARIABLES: Final = ("COLLECTOR", "FORK", "GOODPUT_DIR", "JOB", "KEYS", "ONE_LOGGER", "PARENT", "PURE_PYTHON", "RUN_ID")
"""What trackside reads from the environment, without the prefix."""


def suggests_settings(**nested: type) -> Callable[[C], C]:
    """
    Make a function or a class raise `ConfigError` when it is called with a keyword that it does not have.

    The error names the nearest setting, or all of them where none is near.

    Args:
        nested: For each of its settings that is a configuration, the class of that. Their settings are suggested too.
    """

    def decorate(called: C) -> C:
        parameters = inspect.signature(called).parameters
        takes = called.__name__ if isinstance(called, type) else f"{called.__name__}()"
        suggestions = dict(_settings_of(nested)) | {name: f"{name}=…" for name in parameters}

        def check(settings: dict[str, Any]) -> None:
            if not settings.keys() <= parameters.keys():
                name = next(name for name in settings if name not in parameters)
                meant = nearest(name, suggestions)
                remedy = f"did you mean {suggestions[meant]}?" if meant else f"it has {', '.join(parameters)}"
                raise ConfigError(name, settings[name], f"{takes} has no such setting; {remedy}")

        if not isinstance(called, type):
            return cast("C", _checked(called, check))
        called.__init__ = _checked(called.__init__, check)  # type: ignore[misc]  # it takes what it took
        return called

    return decorate


def misspelt_variables(environ: Iterable[str]) -> Iterator[tuple[str, str]]:
    """
    Yield each name in *environ* that is probably a misspelling of a variable that trackside reads, and that one.

    Those that Kubernetes names after a service, as the port of one called ``trackside-collector``, are left out.
    """
    for name in sorted(environ):
        word = name.removeprefix(_PREFIX)
        if word != name and not any(word == known or word.startswith(f"{known}_") for known in _VARIABLES):
            meant = nearest(word, _VARIABLES)
            if meant is not None:
                yield name, _PREFIX + meant


def _checked(function: Callable[..., Any], check: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        check(settings)
        return function(*args, **settings)

    return call


def _settings_of(nested: dict[str, type]) -> Iterator[tuple[str, str]]:
    """Yield each setting of the configurations *nested*, and how it is given."""
    for setting, cls in nested.items():
        for name in inspect.signature(cls).parameters:
            yield name, f"{setting}={cls.__name__}({name}=…)"

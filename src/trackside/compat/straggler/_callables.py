"""Functions by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from trackside.instruments import CallableId as OurCallableId


@attrs.frozen
class CallableId(OurCallableId):
    """A function of a module, a method of a class or of one object. Only the object and the name are used."""

    arg_filter_fn: Callable[..., Any] | None = None
    extra_args_fn: Callable[..., Any] | None = None
    ignored_args: Any = None

    def __str__(self) -> str:
        # Not our way: the peer names a nested class by its last name alone.
        if inspect.ismodule(self.obj):
            owner = self.obj.__name__
        elif inspect.isclass(self.obj):
            owner = f"{self.obj.__module__}.{self.obj.__name__}"
        else:
            owner = type(self.obj).__name__
        return f"{owner}.{self.name}"

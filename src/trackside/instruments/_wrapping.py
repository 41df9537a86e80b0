"""
Functions and methods that are timed without a change to the code that calls them.

They are those that the user names, and the collectives of ``torch.distributed``, in which this rank waits for others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import attrs

from trackside.events import ConfigError, Value
from trackside.instruments.section_windows import section, waiting
from trackside.instruments.torch import distributed

_ABSENT: Final = object()


@attrs.frozen(eq=False, repr=False)
class NamedCallable(Value):
    """A function of a module, a method of a class or of one object, by name."""

    obj: Any
    name: str

    def __str__(self) -> str:
        if inspect.ismodule(self.obj):
            owner = self.obj.__name__
        elif isinstance(self.obj, type):
            owner = f"{self.obj.__module__}.{self.obj.__qualname__}"
        else:
            owner = type(self.obj).__qualname__
        return f"{owner}.{self.name}"


class _Wrapped(NamedTuple):
    callable_id: NamedCallable
    before: Any
    """The value in the object's own dictionary; absent if it was inherited."""
    wrapper: Any


class Layers:
    """
    The attributes that were wrapped, layer upon layer.

    Args:
        make_section: Makes the section of a name.
    """

    def __init__(self, make_section: Callable[[str], Callable[[Any], Any]]) -> None:
        self._make_section = make_section
        self._layers: list[list[_Wrapped]] = []

    def wrap(self, callable_ids: Iterable[NamedCallable]) -> None:
        """
        Time each call of some functions or methods, as sections named after them.

        Each call of `wrap` adds a layer; `restore` removes the latest.

        Args:
            callable_ids: The functions and methods. Two objects of one class share a section.

        Raises:
            ConfigError: if one of them does not exist or cannot be called; then none is wrapped.
        """
        layer: list[_Wrapped] = []
        try:
            for callable_id in callable_ids:
                _wrap(callable_id, layer, self._make_section)
        except BaseException:
            _restore(layer)
            raise
        self._layers.append(layer)

    def restore(self, *, everything: bool = False) -> int:
        """
        Undo the latest `wrap`.

        Callables that other code has wrapped since stay unchanged.

        Args:
            everything: Undo every `wrap`.

        Returns:
            The number of layers that are left.
        """
        while self._layers:
            _restore(self._layers.pop())
            if not everything:
                break
        return len(self._layers)


_layers: Final = Layers(section)

wrap_callables: Final = _layers.wrap
restore_callables: Final = _layers.restore


def _wrap(
    callable_id: NamedCallable, layer: list[_Wrapped], make_section: Callable[[str], Callable[[Any], Any]]
) -> None:
    owner, name = callable_id.obj, callable_id.name
    found = inspect.getattr_static(owner, name, _ABSENT)
    if found is _ABSENT or not callable(getattr(owner, name)):
        raise ConfigError("callable", str(callable_id), "name a function or a method that is there")
    timed = make_section(str(callable_id))
    wrapper: Any
    if isinstance(owner, type) and isinstance(found, (staticmethod, classmethod)):
        wrapper = type(found)(timed(found.__func__))
    elif isinstance(owner, type):
        wrapper = timed(found)
    else:
        wrapper = timed(getattr(owner, name))
    before = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else found
    setattr(owner, name, wrapper)
    layer.append(_Wrapped(callable_id, before, wrapper))


def _restore(layer: list[_Wrapped]) -> None:
    for callable_id, before, wrapper in reversed(layer):
        owner, name = callable_id.obj, callable_id.name
        if inspect.getattr_static(owner, name, _ABSENT) is not wrapper:
            continue
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


COLLECTIVES: Final = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)

_collectives: Final = Layers(waiting)


def time_collectives(names: Sequence[str] = COLLECTIVES) -> None:
    """
    Time the calls into ``torch.distributed`` from now on, as sections in which this rank waits.

    A section is the time for which a call blocks the host; a backend's later work on the GPU is not timed. Calls
    under a name that was imported before (``from torch.distributed import all_reduce``) are not timed either.

    Args:
        names: The functions; those that this torch does not have are skipped.

    Raises:
        ConfigError: if torch is not installed.
    """
    module = distributed()
    _collectives.wrap([NamedCallable(module, name) for name in names if hasattr(module, name)])


def stop_timing_collectives() -> None:
    """Undo every `time_collectives`."""
    _collectives.restore(everything=True)

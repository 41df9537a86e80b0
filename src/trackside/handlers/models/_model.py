"""The `Model` protocol, and the checks that every model's `load` shares."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, runtime_checkable

from trackside.events import DecodeError, Event, Publish, Source
from trackside.wire import FrameView


@runtime_checkable
class Model(Protocol):
    """
    A handler that computes something from the events of any number of sources.

    It gives the same answer in the job, attached to it, and over its log: its state depends only on the events that it
    read, not on a clock, on the frames that they came in or on how sources interleave.
    """

    @property
    def reads(self) -> tuple[type[Event], ...]:
        """The types of events it needs, subclasses included; it is subscribed to these unless others are given."""

    def consume(self, frame: FrameView) -> None:
        """
        Read one frame, or a part of one, of one source.

        The frames of a source come in the order of their numbers. They may hold events of types that the model does
        not read, and derived ones; it skips both.
        """

    def missed(self, source: Source, count: int) -> None:
        """Count events of *source* that the model should have had and did not get."""

    def result(self) -> object:
        """Return the present result, as a plain attrs value that JSON can hold."""

    def dump(self) -> Mapping[str, object]:
        """Return the state as plain data with its ``version``, for `load`."""

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned, here or elsewhere.

        Raises:
            DecodeError: if *state* is anything else; it may come from a peer. The model is then as it was before.
        """


@runtime_checkable
class DerivingModel(Model, Protocol):
    """A model that publishes events. The bus sets `publish` when the model is subscribed, unless it is set already."""

    publish: Publish | None
    """Publishes a derived event; None where there is nothing to publish to."""


@contextmanager
def decoding(model: object, state: Mapping[str, Any], version: int) -> Iterator[Mapping[str, Any]]:
    """
    Check the form and the *version* of a model's *state*, and turn every error inside the block into a `DecodeError`.

    The block must build the new state completely before it changes the model.

    Raises:
        DecodeError: if *state* is not a mapping or has another version, or if the block raises.
    """
    name = type(model).__qualname__
    given = state.get("version") if isinstance(state, Mapping) else None
    if given != version:
        raise DecodeError(f"a state of {name} has version {version}, and not {given!r:.40}")
    try:
        yield state
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(f"not a state of {name}: {type(error).__name__}: {error}") from error


class VersionedModel(ABC):
    """
    The parts that the models of this library share: the count of missed events, and a state of one version.

    A subclass sets *version* and the attributes that its `_dump` returns, and assigns them anew in `_load`.
    """

    version: ClassVar[int]
    """The version of the state; `load` refuses every other."""
    _missed = 0

    def __call__(self, event: Event) -> None:
        """Read one event as a frame of its own, for programs and tests that have no frames."""
        self.consume(FrameView(event.source, (event,)))

    @abstractmethod
    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""

    def missed(self, source: Source, count: int) -> None:  # noqa: ARG002
        """Count events that did not reach the model."""
        self._missed += count

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"version": self.version, "missed": self._missed, **self._dump()}

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned; nothing is published again for the events that led to it.

        Raises:
            DecodeError: if *state* is anything else; the model is then as it was before.
        """
        loaded = copy.copy(self)
        with decoding(self, state, self.version):
            loaded._missed = int(state["missed"])  # noqa: SLF001
            loaded._load(state)  # noqa: SLF001
        vars(self).update(vars(loaded))

    @abstractmethod
    def _dump(self) -> dict[str, Any]:
        """Return every attribute of the state as plain data."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Assign a new object to every attribute of the state; the old objects must not change."""

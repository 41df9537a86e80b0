"""The state with which a late viewer begins: the sources, their positions, and the models' states as of there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgpack

from trackside.core import complain, described
from trackside.events import DecodeError, Source
from trackside.handlers.zeromq._limits import CHUNK_BYTES, MAX_COUNT, MAX_SNAPSHOT_BYTES
from trackside.wire import pack

_MAX_TEXT_BYTES: Final = 1 << 20
_MAX_LENGTH: Final = 1 << 24
_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 64) - 1


@attrs.frozen
class SourcePosition:
    """How far one source had come."""

    source: Source
    next_seq: int
    """The number of its first event that is in no state."""
    dropped: int
    """Its events that never got a number."""


@attrs.frozen
class Snapshot:
    """The state of things between two events of each source."""

    places: Sequence[SourcePosition]
    models: Mapping[str, Any]
    """By name, what each dumped."""
    taken_ns: int
    """In ns since the epoch."""


def model_name(model: object) -> str:
    """Return the name under which a model's state is dumped and asked for: its class's, wherever that lies."""
    return type(model).__qualname__


def names_of(model: object) -> tuple[str, ...]:
    """Return the names under which a model's state can be asked for: its own, and those that it stands for."""
    return (model_name(model), *getattr(model, "stands_for", ()))


def dump_models(models: Iterable[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the states of those of *models* that are named; of several of one name the first's."""
    wanted = set(names)
    states: dict[str, Any] = {}
    for model in models:
        asked = [name for name in names_of(model) if name in wanted and name not in states]
        if asked and callable(getattr(model, "dump", None)):
            try:
                states.update(dict.fromkeys(asked, model.dump()))
            except Exception as error:  # one model that fails must not take the others' states with it
                complain("the state of %s could not be dumped: %s", model_name(model), described(error))
    return states


def _packable(name: str, state: Any) -> dict[str, Any]:
    """Return the entry of one model: integers saturate at 64 bits, and a state that is no plain data is left out."""
    fitting = _saturated(state)
    try:
        pack(fitting)
    except Exception as error:
        complain("the state of %s is no plain data and is left out: %s", name, described(error))
        return {}
    if fitting != state:
        complain("a sum in the state of %s is larger than 64 bits hold; viewers are sent the largest number", name)
    return {name: fitting}


def _saturated(value: Any) -> Any:
    if type(value) is int:
        return max(_MIN_INT, min(value, _MAX_INT))
    if isinstance(value, Mapping):
        return {_saturated(key): _saturated(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_saturated(entry) for entry in value]
    return value


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """
    Return *snapshot* as bytes.

    Raises:
        ValueError: if it would be larger than any reader accepts.
    """
    table = {
        "sources": [
            [place.source.to_wire(), min(place.next_seq, MAX_COUNT), min(place.dropped, MAX_COUNT)]
            for place in snapshot.places
        ],
        "models": dict(snapshot.models),
        "taken_ns": snapshot.taken_ns,
    }
    try:
        data = pack(table)
    except (OverflowError, TypeError, ValueError):
        models = [_packable(name, state) for name, state in snapshot.models.items()]
        data = pack({**table, "models": {name: state for entry in models for name, state in entry.items()}})
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a snapshot of {len(data)} bytes; at most {MAX_SNAPSHOT_BYTES}")
    return data


def decode_snapshot(data: bytes) -> Snapshot:
    """
    Read a snapshot back.

    Raises:
        DecodeError: if *data* is none. What is in the states is each model's to judge.
    """
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise DecodeError(f"a snapshot of {len(data)} bytes; at most {MAX_SNAPSHOT_BYTES}")
    try:
        table = msgpack.unpackb(
            data,
            strict_map_key=False,
            max_str_len=_MAX_TEXT_BYTES,
            max_array_len=_MAX_LENGTH,
            max_map_len=_MAX_LENGTH,
            max_ext_len=0,
        )
        places = [
            SourcePosition(Source.from_wire(wire), _whole(seq), _whole(dropped))
            for wire, seq, dropped in table["sources"]
        ]
        models, taken_ns = table["models"], table["taken_ns"]
    except Exception as error:  # msgpack raises many kinds, and what it gives may have any shape
        raise DecodeError(f"no snapshot: {error}") from error
    if type(models) is not dict or not all(type(name) is str for name in models) or type(taken_ns) is not int:
        raise DecodeError("a snapshot has models by name, and a time")
    return Snapshot(places, models, taken_ns)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise DecodeError("a snapshot says which numbers are in it")
    return value


def chunk_count(size_bytes: int) -> int:
    """Return how many messages a snapshot of *size_bytes* takes."""
    return -(-size_bytes // CHUNK_BYTES)

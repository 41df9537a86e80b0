"""Events as Parquet files: a table for each type of event, for DuckDB, Spark, Ray and other readers of columns."""

from __future__ import annotations

import hashlib
import os
import re
import typing
import urllib.parse
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from trackside.events import Event, MissingExtraError, Source, UnknownEvent, __version__, lookup, own_fields
from trackside.events._fields import hints_of, is_union
from trackside.wire import value_to_json
from trackside.wire._values import weigh

try:
    import pyarrow
    from pyarrow import parquet
except ImportError as error:
    raise MissingExtraError("Parquet", "parquet", error) from error

Kind: TypeAlias = Literal["int", "float", "bool", "text", "bytes", "json"]
Row: TypeAlias = tuple[Any, ...]
"""The values of the envelope, and one for each column."""

_KINDS: Final[dict[Any, Kind]] = {int: "int", float: "float", bool: "bool", str: "text", bytes: "bytes"}
_TYPES: Final[dict[Kind, frozenset[type]]] = {
    "int": frozenset((int,)),
    "float": frozenset((float, int)),
    "bool": frozenset((bool,)),
    "text": frozenset((str,)),
    "bytes": frozenset((bytes,)),
}
_NONE: Final = frozenset((type(None),))

ENVELOPE: Final = ("seq", "time_ns", "span_id", "step")
"""The columns that every table has, after the ``source`` with its id."""
PARTITIONS: Final = ("session", "attempt", "rank")
UNFIT: Final = "unfit"
"""The column for values that their own column cannot hold: a JSON object by field; mostly NULL."""
_RESERVED: Final = frozenset(("source", *ENVELOPE, *PARTITIONS, UNFIT))

SOURCES: Final = "sources"
"""The table of sources."""

_BATCH_ROWS: Final = 1 << 15
_BATCH_BYTES: Final = 16 << 20
"""The most of one file that is kept in memory; a batch becomes a row group."""
_WAITING_ROWS: Final = 1 << 17
_WAITING_BYTES: Final = 48 << 20
"""The most of all files together."""
_MAX_OPEN: Final = 64

_ARROW_TYPES: Final[dict[Kind, Any]] = {
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "bool": pyarrow.bool_(),
    "text": pyarrow.string(),
    "bytes": pyarrow.binary(),
    "json": pyarrow.string(),
}
_ENVELOPE_OF: Final = ("seq", "at_ns", "span_id", "step")
_envelope_of = attrgetter(*_ENVELOPE_OF)
_SIZED: Final = frozenset(("text", "bytes", "json"))
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_WIRE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_SOURCE_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_MAX_NAME_BYTES: Final = 200


@attrs.frozen
class _Column:
    """One field of an event type as a column."""

    field: str
    kind: Kind
    nesting: str = ""
    """``list`` or ``map`` (by text) of *kind*; empty for a single value."""

    @property
    def name(self) -> str:
        """The column's name: the field's, followed by an underscore where that name is taken."""
        return f"{self.field}_" if self.field in _RESERVED else self.field

    def prepared(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return *values* as the column holds them; NULL for None."""
        if self.kind == "json" and not self.nesting:
            return [_json(value) for value in values]
        return values

    def holds(self, values: Iterable[Any]) -> bool:
        """Return whether all of *values* are of the column's type; one may still be too large."""
        if self.nesting:
            kind, present = (dict if self.nesting == "map" else list), [value for value in values if value is not None]
            if any(type(value) is not kind for value in present):
                return False
            values = [entry for value in present for entry in (value.values() if kind is dict else value)]
        # The set of types is built in C, however many values there are.
        return self.kind == "json" or (_TYPES[self.kind] | _NONE).issuperset(map(type, values))


def _json(value: Any) -> str | None:
    if value is None:
        return None
    return "{}" if value == {} else value_to_json(value)


def _columns_of(cls: type[Event]) -> list[_Column]:
    """Return the columns for the fields of *cls*, by their declared types."""
    hints = hints_of(cls)
    return [_column(name, hints[name]) for name in own_fields(cls)]


def _column(name: str, hint: Any) -> _Column:
    options = [option for option in typing.get_args(hint) if option is not type(None)] if is_union(hint) else [hint]
    if len(options) != 1:
        return _Column(name, "float" if set(options) == {int, float} else "json")
    (hint,) = options
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and inner[0] in _KINDS:
        return _Column(name, _KINDS[inner[0]], "list")
    if origin is dict and inner[0] is str and inner[1] in _KINDS:
        return _Column(name, _KINDS[inner[1]], "map")
    return _Column(name, _KINDS.get(hint, "json"))


def _columns_in(rows: Sequence[dict[str, Any]]) -> list[_Column]:
    """Return columns for undeclared fields, by the values in *rows*."""
    seen: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            seen.setdefault(name, set()).add(type(value))
    return [_Column(name, _kind(types - _NONE)) for name, types in seen.items()]


def _kind(types: set[type]) -> Kind:
    fits: list[Kind] = [kind for kind, allowed in _TYPES.items() if types and allowed.issuperset(types)]
    return fits[0] if fits else "json"


_ENVELOPE: Final = tuple(_Column(name, "int") for name in ENVELOPE)


class ParquetFiles:
    """
    Write events below *directory*: ``TYPE/session=…/attempt=…/rank=…/SOURCE.NNNN.parquet``.

    All files of one type have one schema: the envelope, a column for each field, and `UNFIT` for values that their
    column cannot hold. A value that has no type in Parquet is JSON. `SOURCES` is the table of the sources. Files and
    directories can be read by their owner alone.

    Events may come in any order; those of one source at a time make the fewest files. Memory is bounded. The files are
    complete when `close` has returned.

    Args:
        directory: Created if it does not exist; files of the same name are overwritten.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.events = 0
        """Events written so far."""
        self._tables: dict[tuple[str, int], _Table] = {}
        self._files: OrderedDict[tuple[str, str, int], _TableFile] = OrderedDict()
        self._parts: dict[tuple[str, str, int], int] = {}
        self._sources: dict[str, Source] = {}
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def __call__(self, event: Event) -> None:
        """
        Write *event*.

        Raises:
            OSError: if it cannot be written.
        """
        self.add((event,))

    def add(self, events: Sequence[Event]) -> None:
        """
        Write *events*, all of one source.

        Raises:
            OSError: if they cannot be written.
        """
        by_class: dict[type[Event], list[Event]] = defaultdict(list)
        for event in events:
            by_class[type(event)].append(event)
        for cls, alike in by_class.items():
            if cls is not UnknownEvent:
                file = self._file(alike[0].source, cls.wire_name, cls.version)
                self._count(file, len(alike), file.add(alike))
                continue
            for event in alike:
                assert isinstance(event, UnknownEvent)
                file = self._file(event.source, event.name, event.name_version)
                self._count(file, 1, file.add_unknown(event))
        self.events += len(events)

    def close(self) -> None:
        """
        Write everything.

        Raises:
            OSError: if something cannot be written.
        """
        while self._files:
            self._close_oldest()
        _write_sources(self.directory, list(self._sources.values()))

    def _file(self, source: Source, name: str, version: int) -> _TableFile:
        key = (source.id, name, version)
        file = self._files.get(key)
        if file is not None:
            return file
        while len(self._files) >= _MAX_OPEN:
            self._close_oldest()
        self._sources[source.id] = source
        table = self._tables.get((name, version))
        if table is None:
            table = self._tables[name, version] = _Table(name, version)
        part = self._parts.get(key, 0)
        self._parts[key] = part + 1
        path = Path(table.directory) / _partition(source) / f"{_file_name(source.id)}.{part:04d}.parquet"
        file = self._files[key] = _TableFile(self.directory, path, table, source.id)
        return file

    def _count(self, file: _TableFile, rows: int, weight: int) -> None:
        """Count what waits in memory, and write what exceeds a limit."""
        self._waiting_rows += rows
        self._waiting_bytes += weight
        if file.waiting_rows >= _BATCH_ROWS or file.waiting_bytes >= _BATCH_BYTES:
            self._write(file)
        elif self._waiting_rows >= _WAITING_ROWS or self._waiting_bytes >= _WAITING_BYTES:
            for other in self._files.values():
                self._write(other)

    def _close_oldest(self) -> None:
        _, file = self._files.popitem(last=False)
        self._write(file)
        file.close()

    def _write(self, file: _TableFile) -> None:
        self._waiting_rows -= file.waiting_rows
        self._waiting_bytes -= file.waiting_bytes
        file.write()


class _Table:
    """One version of one type of events: its columns, known at the latest when its first events are written."""

    def __init__(self, name: str, version: int) -> None:
        cls = lookup(name)
        if cls is UnknownEvent or (cls is not None and cls.version != version):
            cls = None
        named = name if _WIRE_NAME.fullmatch(name) else f"unnamed-{name.encode('utf-8', 'replace').hex()[:200]}"
        self.directory = named if cls is not None or version == 1 else f"{named}@{version}"
        self._name = name
        self._columns: list[_Column] | None = _columns_of(cls) if cls is not None else None
        fields = [column.field for column in self._columns or ()]
        self.read: Callable[[Event], Row] = attrgetter(*_ENVELOPE_OF, *fields)
        self._sized = [
            place
            for place, column in enumerate(self._columns or (), start=len(_ENVELOPE_OF))
            if column.nesting or column.kind in _SIZED
        ]

    def weigh(self, rows: Sequence[Row]) -> int:
        """Return about how many bytes *rows* take beyond their columns of fixed size."""
        return sum(
            len(row[place]) if type(row[place]) is str else weigh(row[place])
            for place in self._sized
            for row in rows
            if row[place]
        )

    def columns(self, raw: Sequence[UnknownEvent]) -> list[_Column]:
        """Return the columns; those of an undeclared type are fixed by its first events, *raw*."""
        if self._columns is None:
            self._columns = _columns_in([event.fields for event in raw])
        return self._columns

    def batch(self, source_id: str, rows: list[Row], raw: Sequence[UnknownEvent]) -> Any:
        """Return events as a record batch."""
        columns = self.columns(raw)
        unfit: dict[int, dict[str, Any]] = {}
        for row, event in enumerate(raw, start=len(rows)):
            undeclared = event.fields.keys() - {column.field for column in columns}
            if undeclared:
                unfit[row] = {name: event.fields[name] for name in event.fields if name in undeclared}
        names = [column.field for column in columns]
        rows = rows + [(*_envelope_of(event), *map(event.fields.get, names)) for event in raw]
        arrays = [pyarrow.array([source_id] * len(rows), pyarrow.string())]
        schema = [("source", pyarrow.string())]
        column_names = (*ENVELOPE, *(column.name for column in columns))
        for name, column, values in zip(column_names, (*_ENVELOPE, *columns), zip(*rows, strict=True), strict=True):
            kind = _arrow_type(column)
            arrays.append(_array(column, kind, values, unfit))
            schema.append((name, kind))
        arrays.append(pyarrow.array([_object(unfit.get(row)) for row in range(len(rows))], pyarrow.string()))
        metadata = {"trackside.version": __version__, "trackside.type": self._name}
        return pyarrow.record_batch(
            arrays, schema=pyarrow.schema([*schema, (UNFIT, pyarrow.string())], metadata=metadata)
        )


class _TableFile:
    """One file: the events of one type from one source, or a part of them."""

    def __init__(self, root: Path, path: Path, table: _Table, source_id: str) -> None:
        self._root = root
        self._path = path
        self._table = table
        self._source_id = source_id
        self._writer: Any = None
        self._rows: list[Row] = []
        self._raw: list[UnknownEvent] = []
        """Events of undeclared types."""
        self.waiting_bytes = 0

    @property
    def waiting_rows(self) -> int:
        """How many events wait for `write`."""
        return len(self._rows) + len(self._raw)

    def add(self, events: Sequence[Event]) -> int:
        """Keep *events* until `write`; return their size in bytes."""
        # Rows are made at once, while the events are in the processor's cache: later it takes three times as long.
        rows = list(map(self._table.read, events))
        weight = self._table.weigh(rows)
        self._rows += rows
        self.waiting_bytes += weight
        return weight

    def add_unknown(self, event: UnknownEvent) -> int:
        """Keep *event*, of an undeclared type, until `write`; return its size in bytes."""
        weight = weigh(event.fields)
        self._raw.append(event)
        self.waiting_bytes += weight
        return weight

    def write(self) -> None:
        """Write what waits."""
        if not self.waiting_rows:
            return
        batch = self._table.batch(self._source_id, self._rows, self._raw)
        self._rows, self._raw, self.waiting_bytes = [], [], 0
        if self._writer is None:
            path = _create_private(self._root, self._path)
            texts = [field.name for field in batch.schema if field.type == pyarrow.string()]
            self._writer = parquet.ParquetWriter(path, batch.schema, compression="zstd", use_dictionary=texts)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()


def _arrow_type(column: _Column) -> Any:
    kind = _ARROW_TYPES[column.kind]
    if column.nesting == "list":
        return pyarrow.list_(kind)
    return pyarrow.map_(pyarrow.string(), kind) if column.nesting else kind


def _array(column: _Column, kind: Any, values: Sequence[Any], unfit: dict[int, dict[str, Any]]) -> Any:
    """Return *values* as an array; those that do not fit are NULL in it and added to *unfit*, by row and field."""
    try:
        if column.holds(values):
            return pyarrow.array(column.prepared(values), kind)
    except Exception:  # noqa: S110  Arrow refuses one of them: they are converted one by one
        pass
    fitting: list[Any] = []
    for row, value in enumerate(values):
        try:
            (prepared,) = column.prepared([value])
            fits = column.holds([value]) and pyarrow.array([prepared], kind) is not None
        except Exception:
            fits = False
        if not fits:
            unfit.setdefault(row, {})[column.field] = value
        fitting.append(prepared if fits else None)
    return pyarrow.array(fitting, kind)


def _object(fields: dict[str, Any] | None) -> str | None:
    if not fields:
        return None
    return "{" + ",".join(f"{value_to_json(name)}:{value_to_json(value)}" for name, value in fields.items()) + "}"


# --- files, sources and names ----------------------------------------------------------------------------------


def _create_private(root: Path, path: Path) -> Path:
    """Create an empty file at *path* below *root*, and the directories around it, for the owner alone; return it."""
    for directory in (root, *(root / parent for parent in reversed(path.parents[:-1]))):
        directory.mkdir(mode=_DIRECTORY_MODE, parents=directory is root, exist_ok=True)
    os.close(os.open(root / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE))
    return root / path


def _session(source: Source) -> str:
    return source.session_tag or source.run_id


def _partition(source: Source) -> Path:
    # Hive's form, of which readers make columns; an empty value needs a name of its own.
    session = urllib.parse.quote(_session(source), safe=" ", errors="replace") or "__HIVE_DEFAULT_PARTITION__"
    if len(session) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(session.encode()).hexdigest()[:16]
        session = f"{session[: _MAX_NAME_BYTES - 20]}~{digest}"
    return Path(f"session={session}", f"attempt={source.attempt}", f"rank={source.rank}")


def _file_name(source_id: str) -> str:
    if _SOURCE_ID.fullmatch(source_id):
        return source_id
    return f"source-{hashlib.sha256(source_id.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _write_sources(root: Path, sources: Sequence[Source]) -> None:
    rows = [{"source": source.id, "session": _session(source), **_plain(source)} for source in sources]
    texts = pyarrow.map_(pyarrow.string(), pyarrow.string())
    of_type = {str: pyarrow.string(), int: pyarrow.int64(), bool: pyarrow.bool_()}
    kinds = {field.name: of_type.get(type(getattr(_SAMPLE, field.name))) for field in attrs.fields(Source)}
    kinds = {"source": pyarrow.string(), "session": pyarrow.string(), **kinds}
    kinds |= {"perf_tags": pyarrow.list_(pyarrow.string()), "versions": texts, "metadata": texts}
    kinds |= {"parent_source": pyarrow.string(), "parent_span_id": pyarrow.int64()}
    schema = pyarrow.schema([(name, kind) for name, kind in kinds.items() if kind is not None and name != "id"])
    path = _create_private(root, Path(SOURCES, "sources.parquet"))
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path, compression="zstd")


_SAMPLE: Final = Source.unknown("")


def _plain(source: Source) -> dict[str, Any]:
    values = {name: value for name, value in source.to_wire().items() if name not in {"id", "parent", "anchor"}}
    values["perf_tags"] = list(source.perf_tags)
    parent = source.parent
    if parent is not None:
        values |= {"parent_source": parent.source_id, "parent_span_id": parent.span_id}
    return values

"""
Events as Parquet files: a table for each type of event, for DuckDB, Spark, Ray and whatever else reads columns.

The one module that imports pyarrow.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.events import ConfigError, Event, Source, UnknownEvent, __version__, lookup, value_to_json
from trackside.events._values import weigh
from trackside.handlers._tables import ENVELOPE, UNFIT, Column, Kind, Row, columns_in, columns_of

try:
    import pyarrow
    from pyarrow import parquet
except ImportError as error:
    raise ConfigError("Parquet needs pyarrow", str(error), "install trackside[parquet]") from error

SOURCES: Final = "sources"
"""The table that says who the sources are."""

_BATCH_ROWS: Final = 1 << 15
_BATCH_BYTES: Final = 16 << 20
"""Of one file, in memory; a batch becomes a row group."""
_WAITING_ROWS: Final = 1 << 17
_WAITING_BYTES: Final = 48 << 20
"""Of all files together."""
_MOST_OPEN: Final = 64

_TYPES: Final[dict[Kind, Any]] = {
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "bool": pyarrow.bool_(),
    "text": pyarrow.string(),
    "bytes": pyarrow.binary(),
    "json": pyarrow.string(),
}
_ENVELOPE: Final = tuple(Column(name, "int") for name in ENVELOPE)
_ENVELOPE_OF: Final = ("seq", "at_ns", "span_id", "step")
_envelope_of = attrgetter(*_ENVELOPE_OF)
_SIZED: Final = frozenset(("text", "bytes", "json"))
_WIRE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_SOURCE_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_MOST_NAME_BYTES: Final = 200


class ParquetFiles:
    """
    Writes events below *directory*: ``TYPE/session=…/attempt=…/rank=…/SOURCE.NNNN.parquet``.

    All files of one type have one schema: the envelope, then a column for each field, and `UNFIT` for values that their
    column cannot hold. Whatever has no type of its own in Parquet is JSON. Who the sources are is in `SOURCES`.

    Events may come in any order; those of one source at a time make the fewest files. Memory is bounded. The files are
    whole once it is closed.

    Args:
        directory: Made if it is not there; what it holds is written over where names are the same.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.events = 0
        """Events taken so far."""
        self._tables: dict[tuple[str, int], _Table] = {}
        self._files: OrderedDict[tuple[str, str, int], _File] = OrderedDict()
        self._parts: dict[tuple[str, str, int], int] = {}
        self._sources: dict[str, Source] = {}
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def __call__(self, event: Event) -> None:
        """
        Take *event*.

        Raises:
            OSError: if it cannot be written.
        """
        self.add((event,))

    def add(self, events: Sequence[Event]) -> None:
        """
        Take *events*, all of one source.

        Raises:
            OSError: if they cannot be written.
        """
        by_class: dict[type[Event], list[Event]] = defaultdict(list)
        for event in events:
            by_class[type(event)].append(event)
        for cls, alike in by_class.items():
            if cls is not UnknownEvent:
                file = self._file(alike[0].source, cls.wire_name, cls.version)
                self._note(file, len(alike), file.take(alike))
                continue
            for event in alike:
                assert isinstance(event, UnknownEvent)
                file = self._file(event.source, event.name, event.name_version)
                self._note(file, 1, file.take_raw(event))
        self.events += len(events)

    def close(self) -> None:
        """
        Write everything.

        Raises:
            OSError: if something cannot be written.
        """
        while self._files:
            self._close_oldest()
        self.directory.mkdir(parents=True, exist_ok=True)
        _write_sources(self.directory / SOURCES, list(self._sources.values()))

    def _file(self, source: Source, name: str, version: int) -> _File:
        key = (source.id, name, version)
        file = self._files.get(key)
        if file is not None:
            return file
        while len(self._files) >= _MOST_OPEN:
            self._close_oldest()
        self._sources[source.id] = source
        table = self._tables.get((name, version))
        if table is None:
            table = self._tables[name, version] = _Table(name, version)
        part = self._parts.get(key, 0)
        self._parts[key] = part + 1
        path = self.directory / table.directory / _partition(source) / f"{_file_name(source.id)}.{part:04d}.parquet"
        file = self._files[key] = _File(path, table, source.id)
        return file

    def _note(self, file: _File, rows: int, weight: int) -> None:
        """Count what *file* took, and write what has become too much."""
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

    def _write(self, file: _File) -> None:
        self._waiting_rows -= file.waiting_rows
        self._waiting_bytes -= file.waiting_bytes
        file.write()


class _Table:
    """One version of one type of events: its columns, known at the latest when the first of them are written."""

    def __init__(self, name: str, version: int) -> None:
        cls = lookup(name)
        if cls is UnknownEvent or (cls is not None and cls.version != version):
            cls = None
        named = name if _WIRE_NAME.fullmatch(name) else f"unnamed-{name.encode('utf-8', 'replace').hex()[:200]}"
        self.directory = named if cls is not None or version == 1 else f"{named}@{version}"
        self._name = name
        self._columns: list[Column] | None = columns_of(cls) if cls is not None else None
        fields = [column.field for column in self._columns or ()]
        self.read: Callable[[Event], Row] = attrgetter(*_ENVELOPE_OF, *fields)
        self._sized = [
            place
            for place, column in enumerate(self._columns or (), start=len(_ENVELOPE_OF))
            if column.nesting or column.kind in _SIZED
        ]

    def weigh(self, rows: Sequence[Row]) -> int:
        """Return about how many bytes *rows* take beyond what all of the type take."""
        return sum(
            len(row[place]) if type(row[place]) is str else weigh(row[place])
            for place in self._sized
            for row in rows
            if row[place]
        )

    def columns(self, raw: Sequence[UnknownEvent]) -> list[Column]:
        """Return the columns; of a type that nobody declared they are settled by the first events, *raw*."""
        if self._columns is None:
            self._columns = columns_in([event.fields for event in raw])
        return self._columns

    def batch(self, source_id: str, rows: list[Row], raw: Sequence[UnknownEvent]) -> Any:
        """Return events as a record batch."""
        columns = self.columns(raw)
        unfit: dict[int, dict[str, Any]] = {}
        for row, event in enumerate(raw, start=len(rows)):
            strange = event.fields.keys() - {column.field for column in columns}
            if strange:
                unfit[row] = {name: event.fields[name] for name in event.fields if name in strange}
        names = [column.field for column in columns]
        rows = rows + [(*_envelope_of(event), *map(event.fields.get, names)) for event in raw]
        arrays = [pyarrow.array([source_id] * len(rows), pyarrow.string())]
        schema = [("source", pyarrow.string())]
        called = (*ENVELOPE, *(column.name for column in columns))
        for name, column, values in zip(called, (*_ENVELOPE, *columns), zip(*rows, strict=True), strict=True):
            kind = _arrow_type(column)
            arrays.append(_array(column, kind, values, unfit))
            schema.append((name, kind))
        arrays.append(pyarrow.array([_object(unfit.get(row)) for row in range(len(rows))], pyarrow.string()))
        told = {"trackside.version": __version__, "trackside.type": self._name}
        return pyarrow.record_batch(arrays, schema=pyarrow.schema([*schema, (UNFIT, pyarrow.string())], metadata=told))


class _File:
    """One file: the events of a type from one source, or a part of them."""

    def __init__(self, path: Path, table: _Table, source_id: str) -> None:
        self._path = path
        self._table = table
        self._source_id = source_id
        self._writer: Any = None
        self._rows: list[Row] = []
        self._raw: list[UnknownEvent] = []
        """Events that were read without their class."""
        self.waiting_bytes = 0

    @property
    def waiting_rows(self) -> int:
        """How many events wait for `write`."""
        return len(self._rows) + len(self._raw)

    def take(self, events: Sequence[Event]) -> int:
        """Keep *events* until `write`; return what they take in bytes."""
        # At once, while they lie in the processor's cache: from many of them together it takes three times as long.
        rows = list(map(self._table.read, events))
        weight = self._table.weigh(rows)
        self._rows += rows
        self.waiting_bytes += weight
        return weight

    def take_raw(self, event: UnknownEvent) -> int:
        """Keep *event*, of which fields are known and no class."""
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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            texts = [field.name for field in batch.schema if field.type == pyarrow.string()]
            self._writer = parquet.ParquetWriter(self._path, batch.schema, compression="zstd", use_dictionary=texts)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def _arrow_type(column: Column) -> Any:
    kind = _TYPES[column.kind]
    if column.nesting == "list":
        return pyarrow.list_(kind)
    return pyarrow.map_(pyarrow.string(), kind) if column.nesting else kind


def _array(column: Column, kind: Any, values: Sequence[Any], unfit: dict[int, dict[str, Any]]) -> Any:
    """Return *values* as an array; those that do not fit are noted, by row and field, and NULL in it."""
    try:
        if column.holds(values):
            return pyarrow.array(column.prepared(values), kind)
    except Exception:  # noqa: S110  whatever Arrow says of one of them: they are looked at one by one
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


# --- sources and names -----------------------------------------------------------------------------------------


def _session(source: Source) -> str:
    return source.session_tag or source.run_id


def _partition(source: Source) -> Path:
    # As Hive has it, so that readers make columns of it; an empty value would be no directory's name.
    session = urllib.parse.quote(_session(source), safe=" ", errors="replace") or "__HIVE_DEFAULT_PARTITION__"
    if len(session) > _MOST_NAME_BYTES:
        digest = hashlib.sha256(session.encode()).hexdigest()[:16]
        session = f"{session[: _MOST_NAME_BYTES - 20]}~{digest}"
    return Path(f"session={session}", f"attempt={source.attempt}", f"rank={source.rank}")


def _file_name(source_id: str) -> str:
    if _SOURCE_ID.fullmatch(source_id):
        return source_id
    return f"source-{hashlib.sha256(source_id.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _write_sources(directory: Path, sources: Sequence[Source]) -> None:
    rows = [{"source": source.id, "session": _session(source), **_plain(source)} for source in sources]
    texts = pyarrow.map_(pyarrow.string(), pyarrow.string())
    of_type = {str: pyarrow.string(), int: pyarrow.int64(), bool: pyarrow.bool_()}
    kinds = {field.name: of_type.get(type(getattr(_SAMPLE, field.name))) for field in attrs.fields(Source)}
    kinds = {"source": pyarrow.string(), "session": pyarrow.string(), **kinds}
    kinds |= {"perf_tags": pyarrow.list_(pyarrow.string()), "versions": texts, "metadata": texts}
    kinds |= {"parent_source": pyarrow.string(), "parent_span_id": pyarrow.int64()}
    schema = pyarrow.schema([(name, kind) for name, kind in kinds.items() if kind is not None and name != "id"])
    directory.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), directory / "sources.parquet", compression="zstd")


_SAMPLE: Final = Source.unknown("")


def _plain(source: Source) -> dict[str, Any]:
    told = {name: value for name, value in source.to_wire().items() if name not in {"id", "parent", "anchor"}}
    told["perf_tags"] = list(source.perf_tags)
    parent = source.parent
    if parent is not None:
        told |= {"parent_source": parent.source_id, "parent_span_id": parent.span_id}
    return told

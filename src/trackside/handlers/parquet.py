"""Events as Parquet files: a table for each type of event, for DuckDB, Spark, Ray and other readers of columns."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import typing
import urllib.parse
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeGuard

import attrs

from trackside.events import (
    ConfigError,
    Event,
    Heartbeat,
    IterationEnded,
    ProgramEnded,
    Source,
    SourceEnded,
    TrainingConfigured,
    UnknownEvent,
    UnreadableError,
    __version__,
    clock,
    lookup,
    own_fields,
)
from trackside.events._errors import needing_extra
from trackside.events._fields import hints_of, is_union
from trackside.handlers.eventlog import SourceOutline
from trackside.wire import value_to_json
from trackside.wire._values import weigh

with needing_extra("Parquet", "parquet"):
    import pyarrow
    from pyarrow import dataset, fs, parquet

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
        batch: The name of the files, if these tables become parts of larger ones. The sources of a session, which may
            be many thousands, then share files in which ``attempt`` and ``rank`` are columns.
        sources: The table of the sources so far; it is changed.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, batch: str = "", sources: SourceTable | None = None
    ) -> None:
        self.directory: Path = Path(directory)
        self.events: int = 0
        """Events written so far."""
        self.sources: SourceTable = SourceTable() if sources is None else sources
        self._batch = _shortened(batch)
        self._tables: dict[tuple[str, int], _Table] = {}
        self._files: OrderedDict[tuple[str, str, int], _TableFile] = OrderedDict()
        self._parts: dict[tuple[str, str, int], int] = {}
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
        Write *events*, all of one source; there may be none.

        Raises:
            OSError: if they cannot be written.
        """
        if not events:
            return
        by_class: dict[type[Event], list[Event]] = defaultdict(list)
        for event in events:
            by_class[type(event)].append(event)
        self.sources.add(events, by_class)
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
        self.close_tables()
        self.sources.write(self.directory, SOURCES)

    def close_tables(self) -> None:
        """
        Write everything except the table of sources.

        Raises:
            OSError: if something cannot be written.
        """
        while self._files:
            self._close_oldest()

    def _file(self, source: Source, name: str, version: int) -> _TableFile:
        key = (_session(source) if self._batch else source.id, name, version)
        file = self._files.get(key)
        if file is not None:
            return file
        while len(self._files) >= _MAX_OPEN:
            self._close_oldest()
        table = self._tables.get((name, version))
        if table is None:
            table = self._tables[name, version] = _Table(name, version, has_ranks=bool(self._batch))
        part = self._parts.get(key, 0)
        self._parts[key] = part + 1
        partition = _partition(source)
        place = partition.parents[1] if self._batch else partition
        path = Path(table.directory) / place / f"{self._batch or _file_name(source.id)}.{part:04d}.parquet"
        file = self._files[key] = _TableFile(self.directory, path, table)
        return file

    def _count(self, file: _TableFile, rows: int, weight: int) -> None:
        """Count the rows that wait in memory, and write those of files that exceed a limit."""
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

    def __init__(self, name: str, version: int, *, has_ranks: bool) -> None:
        cls = lookup(name)
        if cls is UnknownEvent or (cls is not None and cls.version != version):
            cls = None
        named = name if _WIRE_NAME.fullmatch(name) else f"unnamed-{name.encode('utf-8', 'replace').hex()[:200]}"
        self.directory = named if cls is not None or version == 1 else f"{named}@{version}"
        self._name = name
        self._has_ranks = has_ranks
        self._columns: list[_Column] | None = _columns_of(cls) if cls is not None else None
        fields = [column.field for column in self._columns or ()]
        self.read: Callable[[Event], Row] = attrgetter(*_ENVELOPE_OF, *fields)
        self._sized = [
            place
            for place, column in enumerate(self._columns or (), start=len(_ENVELOPE_OF))
            if column.nesting or column.kind in _SIZED
        ]

    def weigh(self, rows: Sequence[Row]) -> int:
        """Return roughly the number of bytes that *rows* take beyond their columns of fixed size."""
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

    def batch(self, sources: Sequence[Source], rows: list[Row], raw: Sequence[UnknownEvent]) -> Any:
        """Return events as a record batch: *rows*, each with its source in *sources*, and *raw*."""
        columns = self.columns(raw)
        unfit: dict[int, dict[str, Any]] = {}
        for row, event in enumerate(raw, start=len(rows)):
            undeclared = event.fields.keys() - {column.field for column in columns}
            if undeclared:
                unfit[row] = {name: event.fields[name] for name in event.fields if name in undeclared}
        names = [column.field for column in columns]
        rows = rows + [(*_envelope_of(event), *map(event.fields.get, names)) for event in raw]
        sources = [*sources, *(event.source for event in raw)]
        arrays = [pyarrow.array([source.id for source in sources], pyarrow.string())]
        schema = [("source", pyarrow.string())]
        for name in ("attempt", "rank") if self._has_ranks else ():
            arrays.append(pyarrow.array([getattr(source, name) for source in sources], pyarrow.int64()))
            schema.append((name, pyarrow.int64()))
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
    """One file: the events of one type from one source or session, or a part of them."""

    def __init__(self, root: Path, path: Path, table: _Table) -> None:
        self._root = root
        self._path = path
        self._table = table
        self._writer: Any = None
        self._rows: list[Row] = []
        self._sources: list[Source] = []
        """The source of each row."""
        self._raw: list[UnknownEvent] = []
        """Events of undeclared types."""
        self.waiting_bytes = 0

    @property
    def waiting_rows(self) -> int:
        """The number of events that wait for `write`."""
        return len(self._rows) + len(self._raw)

    def add(self, events: Sequence[Event]) -> int:
        """Keep *events* until `write`; return their size in bytes."""
        # Rows are made at once, while the events are in the processor's cache: later it takes three times as long.
        rows = list(map(self._table.read, events))
        weight = self._table.weigh(rows)
        self._rows += rows
        self._sources += [events[0].source] * len(rows)
        self.waiting_bytes += weight
        return weight

    def add_unknown(self, event: UnknownEvent) -> int:
        """Keep *event*, of an undeclared type, until `write`; return its size in bytes."""
        weight = weigh(event.fields)
        self._raw.append(event)
        self.waiting_bytes += weight
        return weight

    def write(self) -> None:
        """Write the waiting events."""
        if not self.waiting_rows:
            return
        batch = self._table.batch(self._sources, self._rows, self._raw)
        self._rows, self._sources, self._raw, self.waiting_bytes = [], [], [], 0
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


def _create_parents(root: Path, path: Path) -> None:
    """Create *root*, and the directories below it around *path*, for the owner alone."""
    for directory in (root, *(root / parent for parent in reversed(path.parents[:-1]))):
        directory.mkdir(mode=_DIRECTORY_MODE, parents=directory is root, exist_ok=True)


def _create_private(root: Path, path: Path) -> Path:
    """Create an empty file at *path* below *root*, and the directories around it, for the owner alone; return it."""
    _create_parents(root, path)
    os.close(os.open(root / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE))
    return root / path


def _session(source: Source) -> str:
    return source.session_tag or source.run_id


def _partition(source: Source) -> Path:
    # Hive's form, which readers turn into columns; an empty value needs a name of its own.
    session = urllib.parse.quote(_session(source), safe=" ", errors="replace") or "__HIVE_DEFAULT_PARTITION__"
    return Path(f"session={_shortened(session)}", f"attempt={source.attempt}", f"rank={source.rank}")


def _shortened(name: str) -> str:
    if len(name) <= _MAX_NAME_BYTES:
        return name
    return f"{name[: _MAX_NAME_BYTES - 20]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _file_name(source_id: str) -> str:
    if _SOURCE_ID.fullmatch(source_id):
        return source_id
    return f"source-{hashlib.sha256(source_id.encode('utf-8', 'replace')).hexdigest()[:16]}"


# --- the table of sources --------------------------------------------------------------------------------------


class SourceTable:
    """
    The table of sources: the identity, the first and last time, the last step and the end of each.

    Args:
        outlines: The outlines known before.
    """

    def __init__(self, outlines: Iterable[SourceOutline] = ()) -> None:
        self.outlines: dict[str, SourceOutline] = {seen.source.id: seen for seen in outlines}
        """By the id of the source."""
        self._trained: set[str] = set()

    def add(self, events: Sequence[Event], by_class: Mapping[type[Event], Sequence[Event]]) -> None:
        """Account for *events* of one source, in their order, and by class."""
        source = events[0].source
        seen = self.outlines.setdefault(source.id, SourceOutline(source=source))
        seen.source = source
        seen.perf_tags = source.perf_tags or seen.perf_tags
        times = [event.at_ns for event in events]
        seen.first_ns = min(times) if seen.first_ns is None else min(seen.first_ns, *times)
        seen.last_ns = max(times) if seen.last_ns is None else max(seen.last_ns, *times)
        self._add_step(seen, events, by_class.get(IterationEnded, ()))
        seen.ended = events[-1].reason if isinstance(events[-1], SourceEnded) else None
        for configured in by_class.get(TrainingConfigured, ()):
            seen.add_first(configured)
        for heartbeat in by_class.get(Heartbeat, ()):
            assert isinstance(heartbeat, Heartbeat)
            seen.last_heartbeat_ns, seen.heartbeat_interval_ns = heartbeat.at_ns, clock.ns_of(heartbeat.interval_s)
        for program in by_class.get(ProgramEnded, ()):
            assert isinstance(program, ProgramEnded)
            seen.exit_status = program.exit_status

    def _add_step(self, seen: SourceOutline, events: Sequence[Event], iterations: Sequence[Event]) -> None:
        for iteration in reversed(iterations):
            if isinstance(iteration, IterationEnded) and iteration.kind == "training" and iteration.step >= 0:
                self._trained.add(seen.source.id)
                seen.last_step = iteration.step
                return
        if seen.source.id not in self._trained:
            seen.last_step = next((event.step for event in reversed(events) if event.step >= 0), seen.last_step)

    def write(self, root: Path, name: str, about: Mapping[str, str] | None = None) -> None:
        """
        Write the table as ``sources/NAME.parquet`` below *root*.

        Args:
            root: A directory; created if it does not exist.
            name: The name of the file.
            about: Metadata to keep in the file.

        Raises:
            OSError: It cannot be written.
        """
        schema = pyarrow.schema(_SOURCE_COLUMNS, metadata=about)
        rows = [_source_row(seen) for seen in self.outlines.values()]
        path = Path(SOURCES, f"{_shortened(name)}.parquet")
        table = pyarrow.Table.from_pylist(rows, schema)
        parquet.write_table(table, _create_private(root, path), compression="zstd")


class ParquetStore:
    """
    A place for tables that grow batch by batch: a directory, or a bucket such as ``s3://BUCKET/PATH``.

    Args:
        where: A directory, or a URL with a scheme that Arrow's filesystems know. The environment and the URL's query
            configure the access to a bucket, as Arrow documents it.

    Raises:
        ConfigError: *where* is a URL that Arrow does not accept.
    """

    def __init__(self, where: str | os.PathLike[str]) -> None:
        self.where: str = re.sub(r"(?<=://)[^/?]*@|\?.*", "", str(where)) if is_url(where) else str(where)
        """The place, without the secrets in its URL."""
        self._filesystem, self._path = fs.LocalFileSystem(), str(Path(where).absolute())
        try:
            if is_url(where):
                self._filesystem, self._path = fs.FileSystem.from_uri(where)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
            raise ConfigError(
                "place for tables", self.where, f"give a directory or s3://BUCKET/PATH: {error}"
            ) from error
        self._is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """Return a directory for a batch that is being written."""
        if not self._is_local:
            return tempfile.TemporaryDirectory(prefix="trackside-")
        Path(self._path).mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=self._path)

    def publish(self, directory: Path) -> None:
        """
        Move the files below *directory* to this place, each whole and under its name, the tables of sources last.

        Raises:
            OSError: A file cannot be written. Publish the same files again to repair this.
        """
        found = [path.relative_to(directory) for path in directory.rglob("*.parquet")]
        for name in sorted(found, key=lambda name: (name.parts[0] == SOURCES, name)):
            if self._is_local:
                with (directory / name).open("rb") as file:
                    os.fsync(file.fileno())
                _create_parents(Path(self._path), name)
                (directory / name).replace(Path(self._path, name))
            else:
                target = f"{self._path}/{name.as_posix()}"
                fs.copy_files(str(directory / name), target, fs.LocalFileSystem(), self._filesystem)

    def read_sources(self, name: str = "") -> Any:
        """
        Return the table of sources, or the part of it that is called *name*, as a table of Arrow; None without one.

        Raises:
            UnreadableError: It cannot be read, or is something else.
        """
        path = f"{self._path}/{SOURCES}" + (f"/{_shortened(name)}.parquet" if name else "")
        try:
            if self._filesystem.get_file_info(path).type == fs.FileType.NotFound:
                return None
            found = dataset.dataset(path, filesystem=self._filesystem, format="parquet", ignore_prefixes=["."])
            table = found.to_table()
        except (OSError, pyarrow.ArrowException) as error:
            raise UnreadableError(self.where, f"cannot be read: {error}", "see that it can be reached") from error
        if not {column for column, _ in _SOURCE_COLUMNS}.issubset(table.column_names):
            raise UnreadableError(self.where, "has another table of sources", "export it with this release")
        return table

    def outlines(self) -> list[SourceOutline]:
        """
        Return the outline of each source in the tables.

        Raises:
            UnreadableError: They cannot be read, or there are none.
        """
        table = self.read_sources()
        if table is None:
            raise UnreadableError(self.where, "holds no tables", "give what `trackside export` or `archive` wrote")
        return outlines_in(table)


def is_url(where: str | os.PathLike[str]) -> TypeGuard[str]:
    """Return whether *where* is a URL and not a path."""
    return isinstance(where, str) and "://" in where


def outlines_in(table: Any) -> list[SourceOutline]:
    """Return each source's description in a table of sources."""
    return [_outline(row) for row in table.to_pylist()]


_TEXTS: Final = pyarrow.map_(pyarrow.string(), pyarrow.string())
_PLAIN_OUTLINE: Final = (
    *("first_ns", "last_ns", "last_heartbeat_ns", "heartbeat_interval_ns", "last_step", "ended", "exit_status"),
)
"""The attributes of an outline that are columns."""


def _source_columns() -> list[tuple[str, Any]]:
    of_type = {str: pyarrow.string(), int: pyarrow.int64(), bool: pyarrow.bool_(), float: pyarrow.float64()}
    sample = Source.unknown("")
    kinds = {field.name: of_type.get(type(getattr(sample, field.name))) for field in attrs.fields(Source)}
    kinds = {"source": pyarrow.string(), "session": pyarrow.string(), **kinds}
    kinds |= {"perf_tags": pyarrow.list_(pyarrow.string()), "versions": _TEXTS, "metadata": _TEXTS}
    kinds |= {"parent_source": pyarrow.string(), "parent_span_id": pyarrow.int64(), "started_ns": pyarrow.int64()}
    kinds |= {name: pyarrow.string() if name == "ended" else pyarrow.int64() for name in _PLAIN_OUTLINE}
    return [(name, kind) for name, kind in kinds.items() if kind is not None and name != "id"]


_SOURCE_COLUMNS: Final = _source_columns()


def _source_row(seen: SourceOutline) -> dict[str, Any]:
    source = seen.source
    row = {name: value for name, value in source.to_wire().items() if name not in {"id", "parent", "anchor"}}
    row |= {"source": source.id, "session": _session(source), "perf_tags": list(seen.perf_tags)}
    row |= {name: getattr(seen, name) for name in _PLAIN_OUTLINE}
    row["started_ns"] = source.anchor.wall_ns
    if source.parent is not None:
        row |= {"parent_source": source.parent.source_id, "parent_span_id": source.parent.span_id}
    return row


def _outline(row: dict[str, Any]) -> SourceOutline:
    wire = {**row, "id": row.get("source"), "versions": dict(row["versions"]), "metadata": dict(row["metadata"])}
    wire["parent"] = {"source_id": row["parent_source"], "span_id": row["parent_span_id"]}
    wire["anchor"] = {"mono_ns": 0, "wall_ns": row["started_ns"], "uncertainty_ns": 0}
    source = Source.from_wire(wire)
    return SourceOutline(source=source, perf_tags=source.perf_tags, **{name: row[name] for name in _PLAIN_OUTLINE})

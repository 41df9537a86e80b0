"""Exports to Parquet, read back by DuckDB."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import stat
import typing
from pathlib import Path

import pytest

from trackside import cli
from trackside.bus import Bus
from trackside.events import (
    Event,
    IterationEnded,
    JobConfigured,
    ProfileSpanEnded,
    Source,
    SpanEnded,
    StragglerReport,
    UnknownEvent,
    declared,
    lookup,
    own_fields,
)
from trackside.events._fields import hints_of
from trackside.handlers import EventLog, replay
from trackside.wire import to_json, wire_name_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("ids_as_given")]

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from trackside.handlers import parquet as parquet_module  # noqa: E402  it needs pyarrow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parquet.md"
QUESTIONS = dict(
    re.findall(r"^### (.+?)\n.*?```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)
OWN = ("source", "seq", "time_ns", "span_id", "step", "session", "attempt", "rank", "unfit")
START_NS = 1_700_000_000 * 10**9


def record(directory, *events, **recorded):
    """Record *events* as one process; return its source."""
    source = Source(**{"run_id": "run-1", "session_tag": "friday", "host": "node-1", **recorded})
    with Bus(source=source) as bus:
        bus.subscribe(EventLog(directory))
        for event in events or [IterationEnded(step=0, duration_ns=1)]:
            bus.log(event)
    assert bus.stats().lost == 0
    return source


def export(directory, target, *more):
    return cli.main(["export", str(directory), "--parquet", str(target), *more])


def read(target, wire_name):
    """Return the rows of a table, as dictionaries, in the order of source and number."""
    files = f"{target}/{wire_name}/**/*.parquet"
    found = duckdb.sql(f"SELECT * FROM read_parquet('{files}', hive_types_autocast = false) ORDER BY source, seq")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def as_json(cell):
    """Return DuckDB's values as JSON would have them, texts unchanged."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else ("Infinity" if cell > 0 else "-Infinity")
    if isinstance(cell, bytes):
        return base64.b64encode(cell).decode()
    if isinstance(cell, dict):
        return {key: as_json(value) for key, value in cell.items()}
    if isinstance(cell, list):
        return [as_json(value) for value in cell]
    return cell


def fields_in(row):
    """Return the fields of an event as its row has them."""
    unfit = json.loads(row["unfit"] or "{}")
    fields = {}
    for name, cell in row.items():
        if name not in OWN:
            field = name[:-1] if name.endswith("_") and name[:-1] in OWN else name
            fields[field] = unfit.pop(field) if field in unfit else as_json(cell)
    return {**fields, **unfit}


def is_same(cell, expected):
    """Return whether a cell holds a value: itself, or as JSON."""
    if cell == expected:
        return True
    return isinstance(cell, str) and not isinstance(expected, str) and json.loads(cell) == expected


def assert_equal_to_replay(logs, target):
    """Every event of *logs* is in one row of its type's table, and there is no other row."""
    expected = {}
    for event in replay(logs):
        expected.setdefault(wire_name_of(event), []).append(event)
    tables = {path.name for path in target.iterdir()} - {"sources"}
    assert tables == set(expected)
    for wire_name, events in expected.items():
        rows = read(target, wire_name)
        events.sort(key=lambda event: (event.source.id, event.seq))
        assert len(rows) == len(events)
        for row, event in zip(rows, events, strict=True):
            recorded = json.loads(to_json(event))
            source = event.source
            assert {name: row[name] for name in ("source", "seq", "time_ns", "span_id", "step")} == {
                name: recorded[name] for name in ("source", "seq", "time_ns", "span_id", "step")
            }
            assert (row["session"], row["attempt"], row["rank"]) == (
                source.session_tag or source.run_id,
                str(source.attempt),
                str(source.rank),
            )
            found = fields_in(row)
            for field, value in recorded["fields"].items():
                assert is_same(found.pop(field, None), value), (wire_name, field)
            assert all(value is None for value in found.values())


class Values:
    """Random values of declared types."""

    def __init__(self, rng):
        self.rng = rng

    def event(self, cls):
        """Return an event of a class."""
        hints = hints_of(cls)
        recorded = {name: self.value(hints[name]) for name in own_fields(cls)}
        return cls(at_ns=START_NS + self.rng.randrange(10**9), span_id=self.rng.randrange(9), step=3, **recorded)

    def value(self, hint):
        """Return a value of a type."""
        options = typing.get_args(hint)
        origin = typing.get_origin(hint)
        if origin is list:
            return [self.value(options[0]) for _ in range(self.rng.randrange(4))]
        if origin is dict:
            return {self.text(): self.value(options[1]) for _ in range(self.rng.randrange(4))}
        if options:
            return self.value(self.rng.choice(options))
        return {
            int: lambda: self.rng.choice([0, -1, 2**63 - 1, -(2**63), self.rng.randrange(10**12)]),
            float: lambda: self.rng.choice([0.0, -1.5e300, math.nan, math.inf, self.rng.random()]),
            bool: lambda: self.rng.random() < 0.5,
            str: self.text,
            bytes: lambda: self.rng.randbytes(self.rng.randrange(20)),
            type(None): lambda: None,
        }.get(hint, self.anything)()

    def text(self):
        """Return a text."""
        return self.rng.choice(["", "plain", 'with "quotes" and \\', "Zürich 🚄", "\x00\x1b[31m", "=1+1", "a\nb"])

    def anything(self):
        """Return plain data."""
        return self.rng.choice([None, 1, 2.5, "x", [1, "two", None], {"a": {"b": [True]}}, math.nan, b"\x00\xff"])


class TestRows:
    def test_extreme_numbers(self, tmp_path, losses, bits):
        """Infinities, NaN, negative zero and the limits of the format are unchanged in a column of numbers."""
        record(tmp_path / "runs", *losses)
        assert export(tmp_path / "runs", tmp_path / "out") == 0
        rows = read(tmp_path / "out", "trackside.iteration.ended")
        assert bits(row["loss"] for row in rows) == bits(event.loss for event in losses)

    def test_every_declared_type(self, tmp_path, rng):
        """Of each type of the vocabulary, DuckDB has row by row the values that replay has, whatever they are."""
        values = Values(rng)
        classes = [cls for name, cls in declared().items() if name.startswith("trackside.") and cls is not UnknownEvent]
        for rank in range(3):
            record(tmp_path / "logs", *(values.event(cls) for cls in classes for _ in range(20)), rank=rank, attempt=1)

        assert export(tmp_path / "logs", tmp_path / "parquet") == 0
        assert_equal_to_replay(tmp_path / "logs", tmp_path / "parquet")

    def test_undeclared_types(self, tmp_path, rng):
        """A type that only the job declared has the columns of its first events; later values are not lost."""
        assert lookup("acme.batch.undeclared") is None
        recorded = [
            {"loss": None, "why": "nan", "index": 1, "ok": True, "raw": b"\x00", "nested": {"a": [1]}},
            {"loss": 0.5, "why": None, "index": 2, "ok": False, "raw": b"", "nested": None},
            {"loss": 2, "why": "inf", "index": 3, "ok": None, "raw": None, "nested": [1, 2]},
        ]
        other = [{"loss": "gone", "why": 7, "index": 1.5, "ok": 1, "raw": "text", "more": {"x": 1}}, {}]
        events = [UnknownEvent(name="acme.batch.undeclared", fields=fields) for fields in recorded]
        late = [UnknownEvent(name="acme.batch.undeclared", fields=fields) for fields in other]
        record(tmp_path / "logs", *events, id="a" * 16)
        record(tmp_path / "logs", *late, id="b" * 16)

        assert export(tmp_path / "logs", tmp_path / "parquet") == 0
        assert_equal_to_replay(tmp_path / "logs", tmp_path / "parquet")
        rows = read(tmp_path / "parquet", "acme.batch.undeclared")
        assert [(row["loss"], row["why"], row["index"]) for row in rows[:3]] == [
            (None, "nan", 1),
            (0.5, None, 2),
            (2.0, "inf", 3),
        ]
        assert json.loads(rows[3]["unfit"]) == {
            "loss": "gone",
            "why": 7,
            "index": 1.5,
            "ok": 1,
            "raw": "text",
            "more": {"x": 1},
        }

    def test_another_version(self, tmp_path):
        """A later version of a type, whose fields have other meanings, is a table of its own."""
        record(
            tmp_path / "logs",
            IterationEnded(step=1, duration_ns=5),
            UnknownEvent(name="trackside.iteration.ended", name_version=7, fields={"duration_ns": "five"}),
        )
        export(tmp_path / "logs", tmp_path / "parquet")

        assert [row["duration_ns"] for row in read(tmp_path / "parquet", "trackside.iteration.ended")] == [5]
        assert [row["duration_ns"] for row in read(tmp_path / "parquet", "trackside.iteration.ended@7")] == ["five"]

    def test_beyond_64_bits(self, tmp_path):
        """A number that no column of numbers holds is NULL there, and whole in `unfit`."""
        record(tmp_path / "logs", IterationEnded(step=1, duration_ns=2**64 - 1, tokens=3))
        export(tmp_path / "logs", tmp_path / "parquet")

        (row,) = read(tmp_path / "parquet", "trackside.iteration.ended")
        assert (row["duration_ns"], row["tokens"]) == (None, 3)
        assert json.loads(row["unfit"]) == {"duration_ns": 2**64 - 1}

    def test_names_that_are_taken(self, tmp_path):
        """A field with the name of a part of the path has an underscore, and the path's column keeps the name."""
        record(
            tmp_path / "logs",
            JobConfigured(world_size=2, rank=7, node_name="n", session_tag="s"),
            rank=1,
        )
        export(tmp_path / "logs", tmp_path / "parquet")

        (row,) = read(tmp_path / "parquet", "trackside.job.configured")
        assert (row["rank"], row["rank_"]) == ("1", 7)

    def test_sources(self, tmp_path):
        """The sources are a table of their own."""
        source = record(tmp_path / "logs", rank=1, world_size=2, perf_tags=("a", "b"), metadata={"team": "x"})
        worker = record(tmp_path / "logs", rank=1, role="worker", session_tag="", attempt=3)
        export(tmp_path / "logs", tmp_path / "parquet")

        rows = {row["source"]: row for row in read_sources(tmp_path / "parquet")}
        assert set(rows) == {source.id, worker.id}
        recorded = rows[source.id]
        assert (recorded["session"], recorded["rank"], recorded["world_size"], recorded["host"]) == (
            "friday",
            1,
            2,
            "node-1",
        )
        assert (recorded["perf_tags"], recorded["metadata"], recorded["role"]) == (["a", "b"], {"team": "x"}, "main")
        assert (rows[worker.id]["session"], rows[worker.id]["attempt"], rows[worker.id]["role"]) == (
            "run-1",
            3,
            "worker",
        )


def read_sources(target):
    found = duckdb.sql(f"SELECT * FROM '{target}/sources/*.parquet'")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


class TestLayout:
    def test_is_private(self, tmp_path):
        """Every directory has the mode 0700 and every file 0600, also where the process would allow more."""
        record(tmp_path / "runs", IterationEnded(step=0, duration_ns=1))
        before = os.umask(0)
        try:
            assert export(tmp_path / "runs", tmp_path / "out") == 0
        finally:
            os.umask(before)
        found = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
        assert len(found) > 10

    def test_partitions(self, tmp_path):
        """Files lie by type, session, attempt and rank, and are named after the process."""
        source = record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1), attempt=2, rank=5)
        export(tmp_path / "logs", tmp_path / "parquet")

        (path,) = (tmp_path / "parquet" / "trackside.iteration.ended").rglob("*.parquet")
        assert path.relative_to(tmp_path / "parquet").parts == (
            "trackside.iteration.ended",
            "session=friday",
            "attempt=2",
            "rank=5",
            f"{source.id}.0000.parquet",
        )

    @pytest.mark.parametrize("tag", ["a/b=c %2F Zürich", "../../up", "2026-11-20", "x" * 400, "..", "a\nb", "🚄" * 100])
    def test_any_session(self, tmp_path, tag):
        """For any name of a session, its files stay in the directory; DuckDB reads the name back if it fits."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1), session_tag=tag)
        export(tmp_path / "logs", tmp_path / "parquet")

        (row,) = read(tmp_path / "parquet", "trackside.iteration.ended")
        assert row["session"] == tag or len(tag) >= 100
        assert read_sources(tmp_path / "parquet")[0]["session"] == tag
        assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "parquet"]

    @pytest.mark.parametrize("name", ["../../up", "..", "sources", "a/b", "", "x" * 128, "Upper.Case"])
    def test_any_type(self, tmp_path, name):
        """For any name of a type in a log, its files stay in the directory, apart from all others."""
        files = parquet_module.ParquetFiles(tmp_path / "parquet")
        files(UnknownEvent(name=name, fields={"x": 1}))
        files.close()

        assert sorted(path.name for path in tmp_path.iterdir()) == ["parquet"]
        (path,) = (path for path in (tmp_path / "parquet").iterdir() if path.name != "sources")
        assert path.name.startswith("unnamed-")
        assert [row["x"] for row in read(tmp_path / "parquet", path.name)] == [1]

    def test_any_source(self, tmp_path):
        """For any name of a process, its files stay in the directory."""
        event = IterationEnded(step=0, duration_ns=1)
        event._source = Source.unknown("../../../up")
        files = parquet_module.ParquetFiles(tmp_path / "parquet")
        files(event)
        files.close()

        assert sorted(path.name for path in tmp_path.iterdir()) == ["parquet"]
        assert [row["source"] for row in read(tmp_path / "parquet", "trackside.iteration.ended")] == ["../../../up"]

    def test_one_schema(self, tmp_path, rng):
        """All files of a type have one schema, whatever values each of them has."""
        from pyarrow import parquet

        values = Values(rng)
        for rank in range(4):
            record(tmp_path / "logs", *(values.event(StragglerReport) for _ in range(rank)), rank=rank)
            record(tmp_path / "logs", UnknownEvent(name="acme.x", fields={"a": rank or None}), rank=rank)
        export(tmp_path / "logs", tmp_path / "parquet")

        tables = {path.name: path for path in (tmp_path / "parquet").iterdir() if path.is_dir()}
        assert tables.keys() >= {"trackside.straggler.report", "acme.x"}
        for name, table in tables.items():
            assert len({str(parquet.read_schema(path)) for path in table.rglob("*.parquet")}) == 1, name


class TestBounds:
    def test_few_files_open(self, tmp_path, monkeypatch):
        """With more processes and types at a time than may be open, files come in parts, and nothing is lost."""
        monkeypatch.setattr(parquet_module, "_MAX_OPEN", 2)
        monkeypatch.setattr(parquet_module, "_WAITING_ROWS", 10)
        for rank in range(3):
            # Later than the beginning of each log, so that the processes alternate.
            events = [IterationEnded(step=step, at_ns=4 * 10**18 + step, duration_ns=step) for step in range(50)]
            record(tmp_path / "logs", *events, rank=rank)
        files = parquet_module.ParquetFiles(tmp_path / "parquet")
        for event in replay(tmp_path / "logs"):
            files(event)
        files.close()

        assert_equal_to_replay(tmp_path / "logs", tmp_path / "parquet")

    def test_large_values(self, tmp_path, monkeypatch):
        """Waiting events are bounded in bytes, too: large ones are written sooner."""
        from pyarrow import parquet

        monkeypatch.setattr(parquet_module, "_BATCH_BYTES", 1 << 20)
        files = parquet_module.ParquetFiles(tmp_path / "parquet")
        for index in range(100):
            files(
                SpanEnded(span_id=index, parent_span_id=0, name="x", duration_ns=1, attributes={"text": "x" * 60_000})
            )
        files.close()

        (path,) = (tmp_path / "parquet" / "trackside.span.ended").rglob("*.parquet")
        groups = parquet.ParquetFile(path).metadata
        assert groups.num_row_groups >= 5
        assert groups.num_rows == 100


class TestCommand:
    def test_runs(self, tmp_path, capsys):
        """``trackside runs`` says of an export what it says of the logs."""
        for rank in range(2):
            steps = [IterationEnded(step=step, duration_ns=1) for step in range(3 + rank)]
            record(tmp_path / "logs", *steps, rank=rank, world_size=2, perf_tags=("a",))
        export(tmp_path / "logs", tmp_path / "parquet")
        capsys.readouterr()
        said = []
        for path in ("logs", "parquet"):
            assert cli.main(["runs", "--json", str(tmp_path / path)]) == 0
            said.append(json.loads(capsys.readouterr().out))
        assert said[1] == said[0]
        [attempt] = said[1]["sessions"][0]["runs"][0]["attempts"]
        assert [rank["last_step"] for rank in attempt["ranks"]] == [2, 3]

    def test_exists(self, tmp_path, capsys):
        """An existing export is not touched, but with --force replaced."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1), id="a" * 16)
        assert export(tmp_path / "logs", tmp_path / "parquet") == 0
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1), id="b" * 16)
        capsys.readouterr()

        assert export(tmp_path / "logs", tmp_path / "parquet") == 2
        assert "exists; give another name, or --force" in capsys.readouterr().err
        assert len(read_sources(tmp_path / "parquet")) == 1
        assert export(tmp_path / "logs", tmp_path / "parquet", "--force") == 0
        assert len(read_sources(tmp_path / "parquet")) == 2

    def test_exists_and_is_something_else(self, tmp_path, capsys):
        """A directory with any other file in it is never replaced."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1))
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter-1").write_text("")

        assert export(tmp_path / "logs", tmp_path / "thesis", "--force") == 2
        assert "is no export to Parquet" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter-1"]

    def test_empty_directory(self, tmp_path):
        """A directory that is empty counts as none."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1))
        (tmp_path / "parquet").mkdir()
        assert export(tmp_path / "logs", tmp_path / "parquet") == 0

    def test_nothing_readable(self, tmp_path, capsys):
        """If no file can be read no directory is made."""
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "notes.tslog").write_text("a shopping list\n" * 100)

        assert export(tmp_path / "logs", tmp_path / "parquet") == 2
        assert [path.name for path in tmp_path.iterdir()] == ["logs"]
        assert capsys.readouterr().out == ""

    def test_one_of_two(self, tmp_path, capsys):
        """Every readable file is exported; the others are reported in one line, with exit code 2."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1))
        (tmp_path / "logs" / "notes.tslog").write_text("a shopping list\n" * 100)

        assert export(tmp_path / "logs", tmp_path / "parquet") == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert len(read(tmp_path / "parquet", "trackside.iteration.ended")) == 1

    def test_copied_log(self, tmp_path):
        """Of a log and its copy each event is exported once."""
        record(tmp_path / "logs")
        shutil.copytree(tmp_path / "logs", tmp_path / "logs" / "copy")
        assert export(tmp_path / "logs", tmp_path / "tables") == 0
        assert len(read(tmp_path / "tables", "trackside.iteration.ended")) == 1

    def test_no_place(self, tmp_path, capsys):
        """An unwritable target is one line, and nothing is left behind."""
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1))
        assert export(tmp_path / "logs", tmp_path / "nowhere" / "parquet") == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_interrupted(self, tmp_path, monkeypatch):
        """If it is interrupted, nothing is left behind."""

        def interrupt(self, events):
            raise KeyboardInterrupt

        monkeypatch.setattr(parquet_module.ParquetFiles, "add", interrupt)
        record(tmp_path / "logs", IterationEnded(step=0, duration_ns=1))
        assert export(tmp_path / "logs", tmp_path / "parquet") == 130
        assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Give the directory of a job's export: two attempts of two ranks, of which the second rank is slow."""
    directory = tmp_path_factory.mktemp("job")
    for attempt, steps in enumerate([range(6), range(4, 10)]):
        for rank in range(2):
            events: list[Event] = []
            for step in steps:
                at_ns = START_NS + attempt * 10**10 + step * 10**8
                spent_ns = (40 if rank else 25) * 10**6
                loss = 10.0 / (step + 1) + attempt / 8
                for name, part in (("model_forward", 1), ("model_backward", 2)):
                    events.append(
                        ProfileSpanEnded(
                            at_ns=at_ns,
                            step=step,
                            span_id=9,
                            parent_span_id=1,
                            name=name,
                            duration_ns=spent_ns * part // 5,
                        )
                    )
                events.append(IterationEnded(at_ns=at_ns, step=step, duration_ns=spent_ns, loss=loss))
            for at_step, took_ns in ((steps[2], 2 * 10**9), (steps[4], 3 * 10**9)):
                events.append(
                    SpanEnded(
                        span_id=20 + at_step,
                        parent_span_id=1,
                        name="checkpoint_save_sync",
                        duration_ns=took_ns,
                        attributes={"current_iteration": at_step, "checkpoint_strategy": "sync"},
                    )
                )
            record(directory / "logs", *events, rank=rank, attempt=attempt, host=f"node-{rank}", world_size=2)
    assert export(directory / "logs", directory / "parquet") == 0
    return directory


class TestQuestions:
    ANSWERS = {
        "Which rank is slow?": [(1, "node-1", 40.0, 12), (0, "node-0", 25.0, 12)],
        # 12 iterations of each rank: a fifth of (25 + 40) ms forward, two fifths backward.
        "Where does a step's time go?": [("model_backward", 24, 0.31), ("model_forward", 24, 0.16)],
        "How did the loss go, whatever was repeated?": [
            (step, 10.0 / (step + 1) + (step >= 4) / 8) for step in range(10)
        ],
        "What did checkpoints cost, and which one was the slowest?": [
            (attempt, rank, 2, 5.0, str(4 + 4 * attempt)) for attempt in range(2) for rank in range(2)
        ],
        "How did each attempt end?": [
            (attempt, rank, f"node-{rank}", "closed") for attempt in range(2) for rank in range(2)
        ],
    }

    def test_are_five(self):
        """The page answers five questions, and each is tested."""
        assert sorted(QUESTIONS) == sorted(self.ANSWERS)

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_is_answered(self, job, monkeypatch, question):
        """The SQL on the page gives the answer, as the page has it."""
        monkeypatch.chdir(job)
        assert duckdb.sql(QUESTIONS[question]).fetchall() == self.ANSWERS[question]

"""Event logs that are kept in files: every later release reads those of its version, and refuses the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside.cli import main
from trackside.events import (
    IterationEnded,
    Parent,
    SourceEnded,
    SourceStarted,
    SpanEventAdded,
    UnknownEvent,
    UnreadableError,
    clock,
)
from trackside.handlers.eventlog import check_logs, replay

DATA = Path(__file__).parents[2] / "data"
BEGAN_NS = 1_700_000_000_000_000_000


class TestVersion1:
    REFUSAL = (
        r"eventlog-v1\.tslog: is an event log of version 1; this release reads version 2; read it with the release"
    )

    def test_replay(self):
        """
        A log of the version before is refused, with its version, the supported one, and the release that can read it.
        """
        with pytest.raises(UnreadableError, match=self.REFUSAL):
            list(replay(DATA / "eventlog-v1.tslog"))

    def test_inspect(self):
        """A check of such a log refuses it in the same way."""
        with pytest.raises(UnreadableError, match=self.REFUSAL):
            check_logs(DATA / "eventlog-v1.tslog")

    def test_commands(self, capsys, tmp_path):
        """Commands print the same in one line, and exit with 2."""
        export = ["export", "--jsonl", str(tmp_path / "events.jsonl")]
        trace = ["trace", "-o", str(tmp_path / "trace.json")]
        log = str(DATA / "eventlog-v1.tslog")
        commands = (
            *(["info"], ["tail"], ["tail", "--follow"], ["report"], ["goodput"], ["scores"], ["runs"], trace, export),
            *(["top"], ["top", "--once"], ["compare", log]),
        )
        for command in commands:
            assert main([*command, log]) == 2
            error = capsys.readouterr().err
            assert "is an event log of version 1" in error
            assert error.count("\n") == 1


class TestVersion2:
    @pytest.fixture
    def path(self):
        """Give the file."""
        return DATA / "eventlog-v2.tslog"

    def test_events(self, path):
        """Every event is read: known ones as their classes, one of a class that is not declared here as unknown."""
        started, iteration, unknown, mark, ended = replay(path)
        assert type(started) is SourceStarted
        assert iteration == IterationEnded(
            at_ns=BEGAN_NS + 1, parent_span_id=9, step=1, duration_ns=250, tokens=4096, loss=2.5
        )
        assert unknown == UnknownEvent(
            at_ns=BEGAN_NS + 2,
            span_id=0,
            step=1,
            name="acme.brake.tested",
            fields={"pressure": 4.5, "label": "µ-brake"},
            name_version=3,
        )
        assert mark == SpanEventAdded(
            at_ns=BEGAN_NS + 6,
            span_id=9,
            step=2,
            name="a mark in a payload",
            attributes={"bytes": b"\xc1TSL\xc1TS"},
        )
        assert ended == SourceEnded(at_ns=BEGAN_NS + 7, span_id=0, step=-1, reason="closed")

    def test_numbers(self, path):
        """Each has its number."""
        assert [event.seq for event in replay(path)] == [0, 1, 2, 6, 7]

    def test_source(self, path):
        """The whole identity is read."""
        source = next(replay(path)).source
        assert (source.id, source.run_id, source.session_tag) == ("0123456789abcdef", "golden", "s")
        assert (source.attempt, source.rank, source.local_rank, source.world_size) == (2, 5, 1, 8)
        assert (source.host, source.pid, source.application) == ("node-1", 4242, "trainer")
        assert (source.perf_tags, source.metadata) == (("a100", "bf16"), {"owner": "tests"})
        assert source.versions == {"trackside": "0.1.0"}
        assert source.parent == Parent("fedcba9876543210", 7)
        assert source.anchor == clock.Anchor(1000, BEGAN_NS, 40)

    def test_report(self, path):
        """Losses, drops and the end are read, and nothing is damaged."""
        report = check_logs(path)
        (source,) = report.sources
        (loss,) = source.losses
        assert (loss.events, loss.size_bytes, loss.reason) == (3, 777, "No space left on device")
        assert (source.missing, source.holes) == (3, [(3, 5)])
        assert source.dropped == {"trackside.span.ended.profile": 11}
        assert source.ended == "closed"
        (file,) = report.files
        assert file.is_finished
        assert file.damage == []

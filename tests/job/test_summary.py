"""The text at the end of a job."""

from __future__ import annotations

import pytest

from trackside.bus import BusStats, HandlerStats
from trackside.counters import CounterRegistry
from trackside.events import Source
from trackside.handlers import EventLog
from trackside.job._summary import summarize

SOURCE = Source(id="0123456789abcdef", run_id="run-1", rank=3, world_size=8, attempt=2)


class Log(EventLog):
    """An event log that has written the files that a test names."""

    def __init__(self, directory, *files):
        super().__init__(directory)
        self.files = files

    @property
    def paths(self):
        """The files."""
        return [self.directory / name for name in self.files]


@pytest.fixture
def registry():
    return CounterRegistry(publish=lambda event: None, wants=lambda cls: False, threaded=False)


class TestSummarize:
    def test_control_characters(self, tmp_path, registry):
        """A run id from a launcher that holds line breaks and control characters prints neither."""
        source = Source(id="0123456789abcdef", run_id="a\x1b[31m\nlost nothing")
        text = summarize(source, BusStats(), registry.snapshots(), Log(tmp_path), 1.0)
        assert text.splitlines()[0].startswith(r"trackside: a\x1b[31m\nlost nothing, rank 0")

    def test_whole(self, tmp_path, registry):
        """The text gives the identity, the published, counted and lost events, and the files."""
        (tmp_path / "a.tslog").write_bytes(bytes(1536))
        tokens = registry.counter("train.tokens", unit="tokens")
        for value in (1000, 3000):
            tokens.add(value)
        stats = BusStats(published=1234, by_type={"trackside.heartbeat": 34, "acme.batch.skipped": 1200})

        assert summarize(SOURCE, stats, registry.snapshots(), Log(tmp_path, "a.tslog"), 12.345).splitlines() == [
            "trackside: run-1, rank 3 of 8, attempt 2, 12.3 s",
            "  events    1,234: 1,200 acme.batch.skipped, 34 heartbeat",
            "  counters  train.tokens: 4,000 tokens",
            "  lost      nothing",
            f"  log       {tmp_path}/a.tslog (1.5 KiB)",
            f"  look      trackside report {tmp_path}",
        ]

    def test_nothing_happened(self, tmp_path):
        """The text of a job without events, counters and files says just that."""
        assert summarize(SOURCE, BusStats(), [], Log(tmp_path), 0.0).splitlines()[1:] == [
            "  events    none",
            "  lost      nothing",
            f"  log       nothing could be written below {tmp_path}",
            f"  look      trackside report {tmp_path}",
        ]

    def test_losses(self, tmp_path):
        """Losses are reported for each handler that lost events, with the number that it should have had."""
        stats = BusStats(
            handlers=(
                HandlerStats(name="EventLog", runs_on="frames", logged=2000, handled=1500, dropped=400, invalid=100),
                HandlerStats(name="print", runs_on="inline", logged=10, handled=7, failed=1, suspended=2),
                HandlerStats(name="fine", runs_on="inline", logged=10, handled=10),
            )
        )
        lines = summarize(SOURCE, stats, [], Log(tmp_path), 0.0).splitlines()

        assert lines[2] == "  lost      EventLog 500 of 2,000 events, print 3 of 10 events"

    def test_what_is_not_known(self, tmp_path):
        """Work that was not done in time is reported as unknown, beside the known counts."""
        stats = BusStats(
            handlers=(
                HandlerStats(name="EventLog", runs_on="frames", logged=2000, handled=1500, dropped=500),
                HandlerStats(name="acme.Stalled", runs_on="worker", logged=9, handled=9, unfinished=1),
                HandlerStats(name="acme.Behind", runs_on="dispatcher", logged=10, handled=7, in_queue=3),
            )
        )
        lines = summarize(SOURCE, stats, [], Log(tmp_path), 0.0, is_done=False).splitlines()

        assert lines[2] == (
            "  lost      EventLog 500 of 2,000 events; Stalled was not done in time with 9 events;"
            " Behind was not done in time with 3 events"
        )

    def test_what_came_later(self, tmp_path):
        """Events that wait after everything was done in time were logged since, and are no loss."""
        stats = BusStats(handlers=(HandlerStats(name="acme.Other", runs_on="worker", logged=9, handled=8, in_queue=1),))
        lines = summarize(SOURCE, stats, [], Log(tmp_path), 0.0).splitlines()

        assert lines[2] == "  lost      nothing"

    def test_many_types(self, tmp_path):
        """The six types with the most events are listed, the others added up."""
        by_type = {f"acme.type{number}": number for number in range(1, 10)}
        lines = summarize(SOURCE, BusStats(published=45, by_type=by_type), [], Log(tmp_path), 0.0).splitlines()

        assert lines[1] == (
            "  events    45: 9 acme.type9, 8 acme.type8, 7 acme.type7, 6 acme.type6, 5 acme.type5, 4 acme.type4,"
            " 6 of other types"
        )

    def test_many_counters(self, tmp_path, registry):
        """Six counters are listed, and how many more there are; one without values says so."""
        for number in range(8):
            registry.stat(f"counter{number}")
        registry.stat("counter1").record(0.5)
        lines = summarize(SOURCE, BusStats(), registry.snapshots(), Log(tmp_path), 0.0).splitlines()

        assert lines[2:9] == [
            "  counters  counter0: no values",
            "            counter1: 1 value, mean 0.5, last 0.5",
            "            counter2: no values",
            "            counter3: no values",
            "            counter4: no values",
            "            counter5: no values",
            "            and 2 more counters",
        ]

    def test_several_files(self, tmp_path):
        """Each file has a line of its own; one that is gone says so."""
        (tmp_path / "a.tslog").write_bytes(bytes(100))
        lines = summarize(SOURCE, BusStats(), [], Log(tmp_path, "a.tslog", "b.tslog"), 0.0).splitlines()

        assert lines[3:5] == [f"  log       {tmp_path}/a.tslog (100 B)", f"            {tmp_path}/b.tslog (gone)"]

"""The outline of a log, read from its beginning and its end."""

from __future__ import annotations

import os

import pytest

from trackside.events import (
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    TrainingConfigured,
    UnreadableError,
)
from trackside.handlers.eventlog import EventLog, outline

S = 10**9


def iteration(step, **fields):
    """Return a training iteration that ended at as many seconds as its step."""
    return IterationEnded(**{"step": step, "at_ns": step * S, "duration_ns": 1, **fields})


@pytest.fixture
def write(tmp_path, framed):
    """Give a function that writes each list of events as a frame, to a log that ends if *end* says so."""

    def write(source, *groups, end=True, **options):
        log = EventLog(tmp_path, **options)
        log.open(source)
        seq = 0
        for group in groups:
            assert log.accept(framed(source, seq, group), events=len(group))
            seq += len(group)
        assert log.flush(60)
        if end:
            assert log.close(60)
        return log.paths

    return write


class TestOneSource:
    def test_whole(self, write, tmp_path, source):
        """The outline has the first and the last time, the last step and the reason of the end."""
        write(source, [iteration(3), iteration(2)], [iteration(4), SourceEnded(reason="exit", at_ns=9 * S)])
        (seen,) = outline(tmp_path).sources
        assert seen.source == source
        assert (seen.first_ns, seen.last_ns, seen.last_step, seen.ended) == (2 * S, 9 * S, 4, "exit")

    def test_not_ended(self, write, tmp_path, source):
        """A log without an end has no reason."""
        write(source, [iteration(1)])
        (seen,) = outline(tmp_path).sources
        assert seen.ended is None

    def test_went_on(self, write, tmp_path, source):
        """A log that goes on after an end has not ended."""
        write(source, [SourceEnded(reason="closed"), iteration(1)])
        (seen,) = outline(tmp_path).sources
        assert seen.ended is None

    def test_heartbeats(self, write, tmp_path, source):
        """The latest heartbeat is known, and the interval that it names."""
        write(source, [Heartbeat(sequence=n, interval_s=3.0, at_ns=at_s * S) for n, at_s in enumerate((5, 6, 9, 10))])
        (seen,) = outline(tmp_path).sources
        assert (seen.last_heartbeat_ns, seen.heartbeat_interval_ns) == (10 * S, 3 * S)

    def test_steps_of_training(self, write, tmp_path, source, noted):
        """The last step is that of a training iteration, whatever other loops count."""
        write(source, [iteration(7), iteration(2, kind="validation"), noted(step=1)])
        (seen,) = outline(tmp_path).sources
        assert seen.last_step == 7

    def test_steps_of_others(self, write, tmp_path, source, noted):
        """Without training iterations it is that of the last event with a step."""
        write(source, [noted(step=5), noted(step=3), noted(step=-1)])
        (seen,) = outline(tmp_path).sources
        assert seen.last_step == 3

    def test_tags_of_the_source(self, write, tmp_path):
        """The tags are the source's own."""
        write(Source(perf_tags=("a", "b")), [TrainingConfigured(perf_tag=["c"])])
        (seen,) = outline(tmp_path).sources
        assert seen.perf_tags == ("a", "b")

    def test_tags_that_came_later(self, write, tmp_path, source):
        """If the source has no tags, they are those of the training's first configuration."""
        write(source, [iteration(1)], [TrainingConfigured(perf_tag=["c"]), TrainingConfigured(perf_tag=["d"])])
        (seen,) = outline(tmp_path).sources
        assert seen.perf_tags == ("c",)

    def test_nothing_written(self, write, tmp_path, source):
        """A log that holds nothing but its header has no times."""
        (path,) = write(source, [iteration(1)])
        data = path.read_bytes()
        path.write_bytes(data[: data.index(b"\xc1TSL", 4)])
        (seen,) = outline(tmp_path).sources
        assert (seen.source.rank, seen.first_ns, seen.last_ns) == (3, None, None)


class TestLongLogs:
    def test_middle_is_not_read(self, write, tmp_path, source, noted, monkeypatch):
        """Of ten megabytes less than a half is read."""
        filler = [noted(text="x" * 60_000, step=1, at_ns=5 * S) for _ in range(8)]
        (path,) = write(source, [iteration(0)], *[filler] * 21, [iteration(9)])
        read = []
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, at: (read.append(size), pread(fd, size, at))[1])
        (seen,) = outline(tmp_path).sources
        assert (seen.first_ns, seen.last_ns, seen.last_step) == (0, 9 * S, 9)
        assert path.stat().st_size > 10**7
        assert sum(read) < path.stat().st_size / 2

    def test_last_step_long_ago(self, write, tmp_path, source, noted):
        """A last iteration with megabytes behind it is found."""
        filler = [noted(text="x" * 60_000, at_ns=5 * S) for _ in range(8)]
        write(source, [iteration(8)], *[filler] * 10)
        (seen,) = outline(tmp_path).sources
        assert (seen.last_ns, seen.last_step) == (8 * S, 8)

    def test_beginning(self, write, tmp_path, noted):
        """The earliest of the first events counts, and the tags are the source's, however long the log is."""
        filler = [noted(text="x" * 60_000, step=-1, at_ns=5 * S) for _ in range(8)]
        write(
            Source(perf_tags=("a",)),
            [iteration(3), iteration(2), TrainingConfigured(perf_tag=["c"])],
            filler,
            [iteration(4)],
        )
        (seen,) = outline(tmp_path).sources
        assert (seen.first_ns, seen.perf_tags) == (2 * S, ("a",))

    def test_tags_that_came_much_later(self, write, tmp_path, source, noted):
        """The tags of a training that was configured late are found at the end as well."""
        write(source, [noted(text="x" * 60_000)] * 8, [TrainingConfigured(perf_tag=["c"]), iteration(1)])
        (seen,) = outline(tmp_path).sources
        assert seen.perf_tags == ("c",)

    def test_parts(self, write, tmp_path, source, noted):
        """A log of several parts begins with the first and ends with the last, whatever their names are."""
        filler = [noted(text="x" * 60_000, step=-1, at_ns=5 * S) for _ in range(9)]
        groups = [[iteration(1)], filler, filler, [iteration(6), SourceEnded(reason="closed", at_ns=7 * S)]]
        first, second = write(source, *groups, rotate_bytes=1 << 20)
        first.rename(second.with_name("zzz.tslog"))
        (seen,) = outline(tmp_path).sources
        assert (seen.first_ns, seen.last_ns, seen.last_step, seen.ended) == (S, 7 * S, 6, "closed")

    def test_copy(self, write, tmp_path, source):
        """Of a log and a collector's copy that holds less, the outline ends as the longer one does."""
        write(source, [iteration(1)], [iteration(6), SourceEnded(reason="closed", at_ns=7 * S)])
        write(source, [iteration(1)], [iteration(4)], end=False)
        (seen,) = outline(tmp_path).sources
        assert (seen.last_ns, seen.last_step, seen.ended) == (7 * S, 6, "closed")

    @pytest.mark.parametrize("cut", range(1, 400, 7))
    def test_torn(self, write, tmp_path, source, cut):
        """If a kill cut the log off, its sound part is read."""
        (path,) = write(source, *[[iteration(step)] for step in range(1, 9)])
        os.truncate(path, path.stat().st_size - cut)
        (seen,) = outline(tmp_path).sources
        assert seen.first_ns == S
        assert seen.last_step == seen.last_ns // S


class TestSeveral:
    def test_in_order(self, write, tmp_path):
        """Sources come by run, attempt and rank."""
        for run, attempt, rank in [("b", 0, 0), ("a", 1, 0), ("a", 0, 10), ("a", 0, 9)]:
            write(Source(run_id=run, attempt=attempt, rank=rank), [iteration(1)])
        found = [(seen.source.run_id, seen.source.attempt, seen.source.rank) for seen in outline(tmp_path).sources]
        assert found == [("a", 0, 9), ("a", 0, 10), ("a", 1, 0), ("b", 0, 0)]

    def test_unreadable(self, write, tmp_path, source):
        """An unreadable file is named, and the rest is read."""
        write(source, [iteration(1)])
        (tmp_path / "notes.tslog").write_text("nothing of the kind\n" * 100)
        found = outline(tmp_path)
        assert [seen.source.rank for seen in found.sources] == [3]
        assert [str(problem) for problem in found.problems] == [
            f"{tmp_path / 'notes.tslog'}: is no event log; give a .tslog file or a directory"
        ]

    def test_nothing(self, tmp_path):
        """If there is nothing to read, that is an error."""
        with pytest.raises(UnreadableError, match=r"holds no \.tslog file"):
            outline(tmp_path)

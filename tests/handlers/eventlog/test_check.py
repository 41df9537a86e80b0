"""The check of logs: their content, and their damage."""

from __future__ import annotations

import pytest

from trackside.events import Heartbeat, IterationEnded, Source, SourceEnded, UnreadableError
from trackside.handlers.eventlog import Damage, EventLog, check_logs, unwritten_steps
from trackside.handlers.eventlog._format import Kind, encode_record


class TestSources:
    def test_events(self, tmp_path, source, framed, noted):
        """Events are counted by type; their numbers and times span those that were read."""
        log = EventLog(tmp_path)
        log.open(source)
        events = [noted(at_ns=50), IterationEnded(at_ns=20, duration_ns=1), noted(at_ns=30)]
        log.accept(framed(source, 0, events), events=3)
        log.close()
        (report,) = check_logs(tmp_path).sources
        assert report.source == source
        assert report.events == 3
        assert report.by_type == {"test.eventlog.noted": 2, "trackside.iteration.ended": 1}
        assert (report.first_seq, report.last_seq) == (0, 2)
        assert (report.first_ns, report.last_ns) == (20, 50)

    @pytest.mark.parametrize(("end", "steps"), [((), 5), ((SourceEnded(at_ns=63 * 10**9, reason="closed"),), 0)])
    def test_unwritten_steps(self, source, framed, tmp_path, end, steps):
        """
        A step every quarter of a second, after a minute of setting up: the last second holds up to five ends of steps.

        Validation is no step, and no step counts as unwritten where an end is recorded.
        """
        log = EventLog(tmp_path)
        log.open(source)
        ends_ns = [60 * 10**9 + step * 250_000_000 for step in range(9)]
        events = [
            Heartbeat(at_ns=0, sequence=0),
            *(IterationEnded(at_ns=at_ns, duration_ns=1) for at_ns in ends_ns),
        ]
        events += [IterationEnded(at_ns=at_ns, duration_ns=1, kind="validation") for at_ns in ends_ns]
        events += end
        log.accept(framed(source, 0, events), events=len(events))
        log.close()
        (report,) = check_logs(tmp_path).sources
        assert report.unwritten_steps == steps

    @pytest.mark.parametrize(
        ("ends_s", "steps"),
        [
            ([], 0),
            ([7.0], 0),
            ([0, 10, 20, 20.5, 21, 40], 3),
            ([21, 0, 20.5, 10, 40, 20], 3),
            ([0.0, 0.1, 0.2], 11),
        ],
    )
    def test_busiest_second(self, ends_s, steps):
        """As many steps may be missing as ended in the busiest second; a span of less than a second is scaled up."""
        assert unwritten_steps(round(end_s * 1e9) for end_s in ends_s) == steps

    def test_in_order(self, record, tmp_path):
        """Sources come by run, attempt and rank."""
        for run, attempt, rank in [("b", 0, 0), ("a", 1, 0), ("a", 0, 10), ("a", 0, 9)]:
            record(tmp_path, Source(run_id=run, attempt=attempt, rank=rank), [(0, "x")])
        reports = check_logs(tmp_path).sources
        assert [(report.source.run_id, report.source.attempt, report.source.rank) for report in reports] == [
            ("a", 0, 9),
            ("a", 0, 10),
            ("a", 1, 0),
            ("b", 0, 0),
        ]

    def test_missing(self, record, tmp_path, source):
        """Missing numbers are counted exactly and named as ranges, those before the first frame too."""
        record(tmp_path, source, [(0, "x")] * 3, first_seq=5)
        record(tmp_path, source, [(1, "y")] * 2, first_seq=10)
        (report,) = check_logs(tmp_path).sources
        assert (report.missing, report.holes) == (7, [(0, 4), (8, 9)])
        assert report.events == 5

    def test_filtered(self, tmp_path, source, framed, noted):
        """Rows that a filter left out are accounted for by their frame and are not missing."""
        log = EventLog(tmp_path)
        log.open(source)
        log.accept(framed(source, 0, [noted()], last_seq=9), events=1)
        log.accept(framed(source, 10, [noted()]), events=1)
        log.close()
        (report,) = check_logs(tmp_path).sources
        assert (report.events, report.missing) == (2, 0)

    def test_repeated(self, record, tmp_path, source):
        """A record found twice is counted once, and once as repeated."""
        (path,) = record(tmp_path, source, [(0, "x")] * 3)
        (tmp_path / "copy.tslog").write_bytes(path.read_bytes())
        (report,) = check_logs(tmp_path).sources
        assert (report.events, report.repeated) == (3, 3)

    def test_dropped(self, tmp_path, source, framed, noted):
        """The last frame counts the events that never got a number."""
        log = EventLog(tmp_path)
        log.open(source)
        log.accept(framed(source, 0, [noted()], dropped={"a.b": 3}), events=1)
        log.accept(framed(source, 1, [noted()], dropped={"a.b": 8}), events=1)
        log.close()
        assert check_logs(tmp_path).sources[0].dropped == {"a.b": 8}

    def test_losses(self, tmp_path, source, framed, noted):
        """Losses that the writer recorded are listed and summed."""
        log = EventLog(tmp_path)
        log.open(source)
        for n in range(2):
            log.accept(bytes((1 << 20) + 1), events=4)
            log.accept(framed(source, 4 * (n + 1) + n, [noted()]), events=1)
        log.close()
        (report,) = check_logs(tmp_path).sources
        assert [(loss.events, loss.size_bytes) for loss in report.losses] == [(4, (1 << 20) + 1)] * 2
        assert (report.lost_events, report.lost_bytes, report.missing) == (8, 2 * ((1 << 20) + 1), 8)

    def test_ended(self, tmp_path, source, framed):
        """A source that ended has the reason of its end; one that did not has none."""
        log = EventLog(tmp_path)
        log.open(source)
        log.accept(framed(source, 0, [IterationEnded(duration_ns=1)]), events=1)
        log.flush()
        assert check_logs(tmp_path).sources[0].ended is None
        log.accept(framed(source, 1, [SourceEnded(reason="exit")]), events=1)
        log.close()
        assert check_logs(tmp_path).sources[0].ended == "exit"


class TestFiles:
    def test_finished(self, record, tmp_path, source):
        """A file that its writer finished is distinguished from one that it did not."""
        record(tmp_path / "a", source, [(0, "x")])
        record(tmp_path / "b", Source(), [(0, "x")], end=False)
        assert [file.is_finished for file in check_logs(tmp_path).files] == [True, False]

    def test_written_on(self, record, tmp_path, source):
        """A file that goes on after an end, as a joined one may, is not finished by it."""
        (first,) = record(tmp_path / "a", source, [(0, "x")])
        (second,) = record(tmp_path / "b", source, [(1, "y")], first_seq=1, end=False)
        second.write_bytes(first.read_bytes() + second.read_bytes())
        (file,) = check_logs(second).files
        assert not file.is_finished

    def test_continued(self, record, tmp_path, source):
        """All parts but the last say that another follows."""
        record(tmp_path, source, *[[(0, "x" * 40_000)] * 15] * 4, rotate_bytes=1 << 20)
        assert [file.is_continued for file in check_logs(tmp_path).files] == [True, False]

    def test_size(self, record, tmp_path, source):
        """A file's size, frames and source are reported."""
        (path,) = record(tmp_path, source, [(0, "x")], [(1, "y")])
        (file,) = check_logs(path).files
        assert (file.path, file.size_bytes, file.frames, file.source_id) == (path, path.stat().st_size, 2, source.id)

    def test_torn(self, record, tmp_path, source):
        """A torn tail is named with its bytes."""
        (path,) = record(tmp_path, source, [(0, "x")], [(1, "y")], end=False)
        path.write_bytes(path.read_bytes()[:-1])
        (file,) = check_logs(path).files
        (damage,) = file.damage
        assert damage.reason == "torn tail"
        assert damage.offset + damage.length_bytes == file.size_bytes
        assert file.damaged_bytes == damage.length_bytes
        assert not file.is_finished

    def test_neighbours(self, record, tmp_path, source):
        """Damage that goes on is one range, and duplicates are counted as records."""
        (path,) = record(tmp_path, source, [(0, "x")], [(1, "y")])
        data = path.read_bytes()
        path.write_bytes(data * 2)
        (file,) = check_logs(path).files
        assert file.damage == [Damage(len(data), len(data), "duplicate")]
        assert file.repeated_records == 4

    def test_unknown_version(self, record, tmp_path, source):
        """Records of another version are named with its number."""
        (path,) = record(tmp_path, source, [(0, "x")])
        new = encode_record(Kind.FRAME, b"?", sequence=3, version=1)
        path.write_bytes(path.read_bytes() + new + new)
        (file,) = check_logs(path).files
        assert [damage.reason for damage in file.damage] == ["unknown version 1"]
        assert file.damaged_bytes == 2 * len(new)

    def test_unknown_source(self, tmp_path, source, framed, noted):
        """Frames without any header are reported under their source's id."""
        (tmp_path / "piece.tslog").write_bytes(encode_record(Kind.FRAME, framed(source, 0, [noted()]), sequence=5))
        report = check_logs(tmp_path)
        assert [one.source.id for one in report.sources] == [source.id]
        assert [file.source_id for file in report.files] == [source.id]


class TestUnreadable:
    def test_nothing(self, tmp_path):
        """If no file can be read, that is an error."""
        with pytest.raises(UnreadableError, match="holds no"):
            check_logs(tmp_path)
        (tmp_path / "x.tslog").write_bytes(b"something else")
        with pytest.raises(UnreadableError, match="is no event log"):
            check_logs(tmp_path)

    def test_some(self, record, tmp_path, source):
        """If some can, they are listed."""
        record(tmp_path, source, [(0, "x")])
        (tmp_path / "x.tslog").write_bytes(b"something else")
        report = check_logs(tmp_path, tmp_path / "nowhere")
        assert len(report.sources) == 1
        assert [problem.where for problem in report.problems] == [
            str(tmp_path / "nowhere"),
            str(tmp_path / "x.tslog"),
        ]

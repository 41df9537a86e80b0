"""Reading events back, from sound and from damaged files."""

from __future__ import annotations

import os

import pytest

from children import printed_by
from trackside.events import (
    ConfigError,
    Event,
    IterationEnded,
    Source,
    SpanEventAdded,
    UnknownEvent,
    UnreadableError,
)
from trackside.handlers.eventlog import EventLog, feed, replay
from trackside.handlers.eventlog._format import Kind, encode_header, encode_record
from trackside.rules import every


def texts(events):
    return [event.text for event in events]


class TestOneSource:
    def test_events(self, record, tmp_path, source):
        """Events come back in order with their fields, their source and their numbers."""
        record(tmp_path, source, [(10, "a"), (20, "b")], [(30, "c")])
        events = list(replay(tmp_path))
        assert [(event.at_ns, event.text, event.seq) for event in events] == [(10, "a", 0), (20, "b", 1), (30, "c", 2)]
        assert all(event.source == source for event in events)

    def test_kinds_of_path(self, record, tmp_path, source):
        """A path is a file, a directory, or one far above; as text or not."""
        (path,) = record(tmp_path / "deep" / "er", source, [(10, "a")])
        for given in (path, str(path), path.parent, tmp_path, str(tmp_path)):
            assert texts(replay(given)) == ["a"]

    def test_any_name(self, record, tmp_path, source):
        """A named file is read whatever its name is."""
        (path,) = record(tmp_path, source, [(10, "a")])
        assert texts(replay(path.rename(tmp_path / "log.bin"))) == ["a"]

    def test_same_path_twice(self, record, tmp_path, source):
        """A file that two paths lead to is read once."""
        (path,) = record(tmp_path, source, [(10, "a")])
        (tmp_path / "link.tslog").symlink_to(path)
        events = replay(tmp_path, path)
        assert texts(events) == ["a"]
        assert events.repeated == 0

    def test_types(self, tmp_path, source, framed):
        """Only the classes that are asked for come, their subclasses included."""
        log = EventLog(tmp_path)
        log.open(source)
        mixed = [IterationEnded(duration_ns=1), SpanEventAdded(name="x"), IterationEnded(duration_ns=2)]
        log.accept(framed(source, 0, mixed), events=3)
        log.close()
        assert [event.seq for event in replay(tmp_path, to=IterationEnded)] == [0, 2]
        assert [event.seq for event in replay(tmp_path, to=(SpanEventAdded,))] == [1]
        assert [event.seq for event in replay(tmp_path, to=Event)] == [0, 1, 2]
        assert [event.seq for event in replay(tmp_path, to="trackside.span.*")] == [1]
        assert [event.seq for event in replay(tmp_path, to=(SpanEventAdded, "trackside.iteration.ended"))] == [0, 1, 2]

    def test_unknown_type(self, framed, tmp_path, source):
        """An event of an unknown type comes under the name that it was recorded with."""
        log = EventLog(tmp_path)
        log.open(source)
        log.accept(framed(source, 0, [UnknownEvent(name="acme.seen"), UnknownEvent(name="acme.heard")]), events=2)
        log.close()
        assert [event.name for event in replay(tmp_path, to="acme.h*")] == ["acme.heard"]
        assert [event.name for event in replay(tmp_path, to=UnknownEvent)] == ["acme.seen", "acme.heard"]

    def test_keep(self, record, tmp_path):
        """The rule decides for each source on its own, however their events interleave."""
        record(tmp_path, Source(id="a"), [(10, "a0"), (12, "a1"), (14, "a2")])
        record(tmp_path, Source(id="b", rank=1), [(11, "b0"), (13, "b1"), (15, "b2")])
        assert texts(replay(tmp_path, keep=every(2))) == ["a0", "b0", "a2", "b2"]

    @pytest.mark.parametrize("options", [{"to": int}, {"to": "word"}, {"to": ()}, {"keep": 5}], ids=str)
    def test_refused(self, record, tmp_path, source, options):
        """A value that is no type, name, glob or rule is refused at once, as by subscribe."""
        record(tmp_path, source, [(10, "a")])
        with pytest.raises(ConfigError):
            replay(tmp_path, **options)

    def test_sources(self, record, tmp_path, source):
        """Only the events of the sources that are asked for come."""
        record(tmp_path, source, [(10, "a")])
        record(tmp_path, Source(id="other", rank=7), [(20, "b")])
        assert texts(replay(tmp_path, sources=lambda found: found.rank == 7)) == ["b"]
        assert texts(replay(tmp_path, sources=lambda found: False)) == []

    def test_next(self, record, tmp_path, source):
        """The result of replay is an iterator: a caller can take events one by one, and then loop over the rest."""
        record(tmp_path, source, [(10, "a"), (20, "b"), (30, "c")])
        events = replay(tmp_path)
        assert next(events).text == "a"
        assert texts(events) == ["b", "c"]

    def test_running(self, record, tmp_path, source):
        """The log of a job that is still running is read up to the last flush."""
        record(tmp_path, source, [(10, "a")], end=False)
        assert texts(replay(tmp_path)) == ["a"]


class TestParts:
    def test_chained(self, record, tmp_path, source):
        """The parts of one log are read in the order of writing."""
        groups = [[(n * 10 + k, f"{n}.{k}" + "x" * 60_000) for k in range(10)] for n in range(8)]
        paths = record(tmp_path, source, *groups, rotate_bytes=1 << 20)
        assert len(paths) == 4
        assert [event.seq for event in replay(tmp_path)] == list(range(80))

    def test_any_order(self, record, tmp_path, source):
        """The same holds whatever their order and names are."""
        groups = [[(n, str(n) + "x" * 40_000) for _ in range(15)] for n in range(4)]
        paths = record(tmp_path / "logs", source, *groups, rotate_bytes=1 << 20)
        renamed = [path.rename(tmp_path / f"{9 - n}.tslog") for n, path in enumerate(paths)]
        assert [event.seq for event in replay(*renamed)] == list(range(60))
        assert [event.seq for event in replay(tmp_path)] == list(range(60))

    def test_missing_part(self, record, tmp_path, source):
        """Without one of the parts the others are read, and its events are counted as missing."""
        groups = [[(n, str(n) + "x" * 40_000) for _ in range(15)] for n in range(6)]
        paths = record(tmp_path, source, *groups, rotate_bytes=1 << 20)
        assert len(paths) == 3
        paths[1].unlink()
        events = replay(tmp_path)
        assert len(list(events)) == 60
        assert (events.missing, events.trackers[source.id].holes) == (30, [(30, 59)])

    def test_halves(self, tmp_path, source, framed, noted):
        """Of a file cut in two each half is readable and knows its source; together they are the whole."""
        log = EventLog(tmp_path / "logs")
        log.open(source)
        for n in range(300):
            while not log.accept(framed(source, n, [noted(text="x" * 60_000, number=n)]), events=1):
                log.flush()
        assert log.close(10)
        data = log.paths[0].read_bytes()
        log.paths[0].unlink()
        halves = [tmp_path / "2nd.tslog", tmp_path / "1st.tslog"]
        cut = 9 << 20
        halves[0].write_bytes(data[cut:])
        halves[1].write_bytes(data[:cut])

        parts = [list(replay(half)) for half in halves]
        assert all(event.source == source for part in parts for event in part)
        whole = [event.number for event in replay(*halves)]
        assert whole == [event.number for part in reversed(parts) for event in part]
        assert sorted(set(range(300)) - set(whole)) == [(cut // 60_100)]

    def test_copy(self, record, tmp_path, source):
        """A copy of a log beside it adds no event, and its events are counted as repeated."""
        (path,) = record(tmp_path, source, [(10, "a"), (20, "b")])
        (tmp_path / "copy.tslog").write_bytes(path.read_bytes())
        events = replay(tmp_path)
        assert texts(events) == ["a", "b"]
        assert events.repeated == 2

    def test_half_a_frame_again(self, tmp_path, source, framed, noted):
        """Of a frame that was partly read before, the rest is read."""
        log = EventLog(tmp_path)
        log.open(source)
        notes = [noted(number=n) for n in range(6)]
        log.accept(framed(source, 0, notes[:4]), events=4)
        log.accept(framed(source, 2, notes[2:]), events=4)
        log.close()
        events = replay(tmp_path)
        assert [event.number for event in events] == [0, 1, 2, 3, 4, 5]
        assert events.repeated == 2


class TestManySources:
    def test_by_time(self, record, tmp_path):
        """The events of several sources come by time."""
        record(tmp_path, Source(rank=0), [(10, "a"), (30, "c")], [(60, "f")])
        record(tmp_path, Source(rank=1), [(20, "b"), (40, "d"), (50, "e")])
        assert texts(replay(tmp_path)) == ["a", "b", "c", "d", "e", "f"]

    def test_own_order(self, record, tmp_path):
        """An event with an older time than the one before it keeps its place in its source."""
        record(tmp_path, Source(rank=0), [(10, "a"), (50, "late"), (20, "old"), (60, "z")])
        record(tmp_path, Source(rank=1), [(30, "b"), (55, "c")])
        assert texts(replay(tmp_path)) == ["a", "b", "late", "old", "c", "z"]

    def test_brute_force(self, record, tmp_path, rng):
        """Random streams are merged as sorting by each one's running maximum would."""
        expected = []
        for rank in range(5):
            source = Source(id=f"{rank:016x}", rank=rank)
            times = [rng.randrange(1000) for _ in range(50)]
            latest = 0
            for seq, at_ns in enumerate(times):
                latest = max(latest, at_ns)
                expected.append((latest, source.id, seq))
            record(tmp_path, source, *[[(at_ns, "")] for at_ns in times])
        assert [(event.source.id, event.seq) for event in replay(tmp_path)] == [
            (name, seq) for _, name, seq in sorted(expected)
        ]

    def test_concatenated(self, record, tmp_path):
        """Logs of two sources that were joined to one file are both read."""
        data = b""
        for rank in range(2):
            (path,) = record(tmp_path / "logs", Source(rank=rank), [(10 + rank, f"rank {rank}")])
            data += path.read_bytes()
        (tmp_path / "joined.tslog").write_bytes(data)
        events = list(replay(tmp_path / "joined.tslog"))
        assert [(event.text, event.source.rank) for event in events] == [("rank 0", 0), ("rank 1", 1)]


class TestDamage:
    def test_truncated_everywhere(self, record, tmp_path, source):
        """Cut at any byte, a log gives a prefix of its events without an error."""
        (path,) = record(tmp_path / "logs", source, *[[(n, str(n))] for n in range(12)])
        data = path.read_bytes()
        cut = tmp_path / "cut.tslog"
        lengths = []
        for size in range(len(data) + 1):
            cut.write_bytes(data[:size])
            events = texts(replay(cut))
            assert events == [str(n) for n in range(len(events))]
            lengths.append(len(events))
        assert lengths == sorted(lengths)
        assert lengths[-1] == 12

    def test_counted(self, record, tmp_path, source):
        """A damaged frame costs its events, and they are counted; so are its bytes."""
        (path,) = record(tmp_path, source, [(0, "a"), (1, "b")], [(2, "c"), (3, "to be damaged"), (4, "e")], [(5, "f")])
        data = bytearray(path.read_bytes())
        data[data.index(b"to be damaged")] ^= 0xFF
        path.write_bytes(data)
        events = replay(path)
        assert texts(events) == ["a", "b", "f"]
        assert events.missing == 3
        assert events.damaged_bytes > 0

    def test_not_a_frame(self, record, tmp_path, source):
        """A sound record that holds no frame is skipped and counted."""
        (path,) = record(tmp_path, source, [(0, "a")])
        stray = encode_record(Kind.FRAME, b"no frame", sequence=3, stream=1)
        path.write_bytes(path.read_bytes() + stray)
        events = replay(path)
        assert texts(events) == ["a"]
        assert events.damaged_bytes == len(stray)

    def test_unknown_kind(self, record, tmp_path, source):
        """So is a record of a kind that a later release may bring."""
        (path,) = record(tmp_path, source, [(0, "a")])
        path.write_bytes(path.read_bytes() + encode_record(77, b"", sequence=0, stream=1))
        assert texts(replay(path)) == ["a"]


class TestUnreadable:
    def test_missing(self, tmp_path):
        """A path that does not exist is an error at once, with the path and a remedy."""
        with pytest.raises(UnreadableError, match=r"nowhere: does not exist; give a \.tslog file or a directory"):
            replay(tmp_path / "nowhere")

    def test_nothing(self):
        """So is no path at all."""
        with pytest.raises(UnreadableError, match="no path"):
            replay()

    def test_empty_directory(self, tmp_path):
        """So is a directory without logs."""
        with pytest.raises(UnreadableError, match=r"holds no \.tslog file"):
            replay(tmp_path)

    def test_rest_is_read(self, record, tmp_path, source):
        """If another path can be read, it is; the error comes after it."""
        (path,) = record(tmp_path, source, [(0, "a")])
        events = replay(tmp_path / "nowhere", path)
        assert next(events).text == "a"
        with pytest.raises(UnreadableError, match="nowhere"):
            next(events)

    def test_stranger(self, record, tmp_path, source):
        """A file in the directory that is no log does not keep the others from being read."""
        record(tmp_path, source, [(0, "a")])
        (tmp_path / "other.tslog").write_bytes(b"something else")
        events = replay(tmp_path)
        assert next(events).text == "a"
        with pytest.raises(UnreadableError, match=r"other\.tslog: is no event log"):
            next(events)

    def test_other_version(self, tmp_path):
        """A log of a version this release does not know is refused by its number."""
        (tmp_path / "new.tslog").write_bytes(encode_record(Kind.HEADER, b"?", sequence=0, version=9))
        with pytest.raises(UnreadableError, match="version 9; this release reads version 2"):
            list(replay(tmp_path))

    def test_pipe(self, tmp_path):
        """A named pipe is refused, without waiting for its writer."""
        os.mkfifo(tmp_path / "pipe.tslog")
        with pytest.raises(UnreadableError, match="no regular file"):
            list(replay(tmp_path))

    def test_empty_file(self, tmp_path):
        """A file that nothing was written to yet is no error."""
        (tmp_path / "new.tslog").write_bytes(b"")
        assert list(replay(tmp_path)) == []

    def test_gone_meanwhile(self, record, tmp_path, source):
        """A file that is removed while it is read is an error after the rest."""
        paths = record(tmp_path, source, *[[(n, "x" * 60_000)] for n in range(40)], rotate_bytes=1 << 20)
        events = replay(tmp_path)
        next(events)
        paths[2].unlink()
        with pytest.raises(UnreadableError, match="No such file"):
            list(events)


class TestScale:
    @pytest.mark.hang_guard(120)
    def test_descriptors(self, tmp_path, framed, noted):
        """4,096 sources are merged with 256 descriptors, by time, and in bounded memory."""
        for rank in range(4096):
            source = Source(id=f"{rank:016x}", rank=rank)
            events = [noted(at_ns=n * 10_000 + rank) for n in range(3)]
            records = (Kind.HEADER, encode_header(source, 0)), (Kind.FRAME, framed(source, 0, events))
            data = b"".join(encode_record(kind, payload, sequence=n) for n, (kind, payload) in enumerate(records))
            (tmp_path / f"{rank}.tslog").write_bytes(data)
        code = """
            import resource, sys
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            from trackside.handlers.eventlog import replay
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            latest, count = 0, 0
            for event in replay(sys.argv[1]):
                assert event.at_ns >= latest
                latest, count = event.at_ns, count + 1
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(count, grown // 1024)
        """
        count, grown_mib = map(int, printed_by(code, tmp_path).split())
        assert count == 4096 * 3
        assert grown_mib < 100


class TestFeed:
    def test_models(self, record, tmp_path, source):
        """Each model gets each event in order, and they are returned."""
        record(tmp_path, source, [(0, "a"), (1, "b")])

        class Last:
            def __init__(self):
                self.texts = []

            def __call__(self, event):
                self.texts.append(event.text)

        first, second = feed(replay(tmp_path), Last(), Last())
        assert (first.texts, second.texts) == (["a", "b"], ["a", "b"])

    def test_views(self, record, tmp_path, source):
        """A model reads views of one source each, in order, and of a long log never more than 1,024 events at once."""
        record(tmp_path, source, [(at_ns, str(at_ns)) for at_ns in range(1500)])
        record(tmp_path, Source(id="other", rank=1), [(5000, "other")])

        class Sizes:
            def __init__(self):
                self.seen = []

            def consume(self, view):
                self.seen.append((view.source.id, [event.seq for event in view.events]))

        (sizes,) = feed(replay(tmp_path), Sizes())
        assert sizes.seen == [
            (source.id, list(range(1024))),
            (source.id, list(range(1024, 1500))),
            ("other", [0]),
        ]

    def test_no_model(self, record, tmp_path, source):
        """Without a model the events are read all the same, and nothing is returned."""
        record(tmp_path, source, [(0, "a")])
        events = replay(tmp_path)
        assert feed(events) == ()
        assert list(events) == []

from __future__ import annotations

import math
import os
import signal
import threading
import time
import types

import msgpack
import pytest

import framing
from interrupting import Interruption, interrupting_once
from trackside.events import (
    ClockCompared,
    DecodeError,
    EventsLost,
    IterationEnded,
    PeerCut,
    RankFellSilent,
    RankSpokeAgain,
    Source,
    SourceEnded,
    SourceStarted,
)
from trackside.handlers import check_logs, feed, replay
from trackside.handlers.eventlog._reader import LogReader
from trackside.handlers.eventlog._writer import log_name
from trackside.handlers.models import ClockOffsets, CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq import Collector, PeerLimits, _collector
from trackside.handlers.zeromq._collector import CollectedStreams, MultiLogWriter
from trackside.handlers.zeromq._connection import new_context
from trackside.handlers.zeromq._receiver import SourceRegistry
from trackside.wire import Frame, FrameDecoder

pytestmark = pytest.mark.once

STEP = "test.step.taken"


def frame_of(source, first, last):
    """Return a frame with the iterations *first* to *last*."""
    steps = range(first, last + 1)
    iterations = [IterationEnded(duration_ns=1, step=step, at_ns=step, parent_span_id=0) for step in steps]
    return framing.frame_of(source.id, iterations, first_seq=first)


class Undecoded:
    """Keeps the frames of a log file unchanged, by the source that its header names."""

    def __init__(self):
        self.frames = {}

    def introduce(self, source):
        """Note the source of the frames that follow."""
        self._current = self.frames.setdefault(source.id, [])

    def decode(self, payload):
        """Keep a frame."""
        self._current.append(payload)
        return Frame(None, 0, 0, {}, [])


@pytest.fixture
def sent(jobs):
    """Give a function that starts a job that sends to a collector, with a rank."""
    return lambda collector, rank=0, **options: jobs(
        publish=False, collector=collector.endpoint, insecure="keys" not in options, rank=rank, **options
    )


class TestLogs:
    @pytest.mark.integration
    def test_everything_is_there_once(self, collectors, sent, tmp_path):
        """
        The logs of two jobs hold every event that they logged, each under its number.
        """
        collector = collectors(log=tmp_path)
        pair = [sent(collector, rank, models=False) for rank in range(2)]
        for rank, job in enumerate(pair):
            job.log(count=3000 + rank)
            job.end()
            job.close(timeout_s=60)
            job.leave()

        assert collector.end()

        report = {one.source.rank: one for one in check_logs(tmp_path).sources if one.source.role == "main"}
        assert [report[rank].by_type[STEP] for rank in range(2)] == [3000, 3001]
        assert [report[rank].missing for rank in range(2)] == [0, 0]
        assert [report[rank].ended for rank in range(2)] == ["closed", "closed"]

    def test_frames_byte_for_byte(self, tmp_path, monkeypatch):
        """A log's records are the frames that came, unchanged."""
        sources = [Source.detect({}, run_id="run", rank=rank) for rank in range(3)]
        frames = {source.id: [frame_of(source, 10 * n, 10 * n + 9) for n in range(20)] for source in sources}
        monkeypatch.setattr(_collector, "MOST_OPEN", 1)
        log_writer = MultiLogWriter(tmp_path)
        for n in range(20):
            for source in sources:
                log_writer.append(source, frames[source.id][n], 10)
            if n % 5 == 0:
                log_writer.flush()  # so that files are closed and opened again in between
        assert log_writer.close(60)

        kept = Undecoded()
        for path in tmp_path.rglob("*.tslog"):
            list(LogReader(path, kept).read())
        assert kept.frames == frames

    @pytest.fixture
    def half_written(self, tmp_path):
        """Give a source that has written events 0 to 9 into a file of its own, and a writer for the same directory."""
        source = Source.detect({}, run_id="run")
        log_writer = MultiLogWriter(tmp_path / "logs")
        own = MultiLogWriter(tmp_path / "own")
        own.append(source, frame_of(source, 0, 9), 10)
        assert own.flush(60)
        (tmp_path / "own").rename(tmp_path / "logs")
        log_writer.append(source, frame_of(source, 0, 9), 10)
        assert log_writer.flush(60)  # it waits no longer for the source to show whether it has a file of its own
        for first in (10, 20):
            log_writer.append(source, frame_of(source, first, first + 9), 10)
        assert log_writer.flush(60)
        (report,) = check_logs(tmp_path / "logs").sources
        assert (report.events, report.repeated) == (10, 0)
        return source, log_writer

    def test_own_file(self, half_written, tmp_path):
        """A source that writes its file itself has no second one, and its latest events are forgotten when it ends."""
        source, log_writer = half_written
        log_writer.end(source)
        assert log_writer.close(60)
        assert len(list(tmp_path.rglob("*.tslog"))) == 1
        assert log_writer.stats()["refused_events"] == 0

    def test_own_file_of_a_killed_process(self, half_written, tmp_path):
        """Of one that did not end the events that its own file lacks are written when the writer closes."""
        _, log_writer = half_written
        assert log_writer.close(60)
        (report,) = check_logs(tmp_path / "logs").sources
        assert (report.events, report.missing) == (30, 0)
        assert [event.step for event in replay(tmp_path / "logs")] == list(range(30))

    def test_own_file_of_much(self, tmp_path, monkeypatch):
        """No more than the latest events of such a source are kept."""
        source = Source.detect({}, run_id="run")
        frames = [frame_of(source, first, first + 9) for first in range(1000, 2000, 10)]
        monkeypatch.setattr(_collector, "_TAIL_BYTES", 3 * len(frames[0]))
        log_writer = MultiLogWriter(tmp_path)
        (tmp_path / log_name(source, 0)).parent.mkdir()
        (tmp_path / log_name(source, 0)).touch()
        log_writer.append(source, frames[0], 10)
        assert log_writer.flush(60)
        for frame in frames[1:]:
            log_writer.append(source, frame, 10)
        assert log_writer.close(60)
        assert [event.step for event in replay(tmp_path)] == list(range(1970, 2000))

    def test_ends_at_once(self, tmp_path):
        """A source that ends before its file is begun is written, too, as soon as that is asked for."""
        source = Source.detect({}, run_id="run")
        log_writer = MultiLogWriter(tmp_path)
        log_writer.append(source, frame_of(source, 0, 9), 10)
        log_writer.end(source)
        assert log_writer.flush(60)
        assert [event.step for event in replay(tmp_path)] == list(range(10))

    def test_file_of_an_earlier_writer(self, tmp_path):
        """A source whose file was there before, as a collector that was killed leaves it, is written on."""
        source = Source.detect({}, run_id="run")
        earlier = MultiLogWriter(tmp_path)
        earlier.append(source, frame_of(source, 0, 9), 10)
        assert earlier.flush(60)
        later = MultiLogWriter(tmp_path)
        later.append(source, frame_of(source, 10, 19), 10)
        assert later.flush(60)
        assert [event.step for event in replay(tmp_path)] == list(range(20))

    def test_vanished_file_is_named(self, tmp_path, monkeypatch):
        """Lost frames of a file that was removed are counted in the next, and later events are kept."""
        source = Source.detect({}, run_id="run")
        monkeypatch.setattr(_collector, "MOST_OPEN", 0)
        log_writer = MultiLogWriter(tmp_path)
        log_writer.append(source, frame_of(source, 0, 9), 10)
        assert log_writer.flush(60)
        next(tmp_path.rglob("*.tslog")).unlink()

        log_writer.append(source, frame_of(source, 10, 19), 10)

        assert log_writer.close(60)
        (report,) = check_logs(tmp_path).sources
        assert (report.events, report.lost_events) == (10, 10)

    def test_full_buffer_is_counted(self, tmp_path, monkeypatch):
        """Frames that the disk does not accept in time are refused, counted, and named in the log."""
        source = Source.detect({}, run_id="run")
        frame = frame_of(source, 0, 9)
        monkeypatch.setattr(_collector, "BUFFER_BYTES", len(frame))
        monkeypatch.setattr(_collector, "FLUSH_S", 60)
        log_writer = MultiLogWriter(tmp_path)
        log_writer.append(source, frame, 10)

        assert not log_writer.append(source, frame_of(source, 10, 19), 10)

        assert log_writer.stats()["refused_events"] == 10
        log_writer.close()
        (report,) = check_logs(tmp_path).sources
        assert (report.events, report.lost_events) == (10, 10)


@pytest.mark.integration
class TestModels:
    def test_as_if_the_log_were_replayed(self, collectors, sent, tmp_path):
        """The states of a collector's models equal those of a replay of its logs."""
        collector = collectors(log=tmp_path)
        pair = [sent(collector, rank) for rank in range(2)]
        for rank, job in enumerate(pair):
            job.work(seed=rank, steps=20)
            job.end()
            job.close(timeout_s=60)
            job.leave()
        assert collector.end()

        live = {type(model).__name__: model for model in collector.models if hasattr(model, "dump")}
        fresh = feed(
            (event for event in replay(tmp_path) if not event.derived),
            SpanBuilder(),
            GoodputAccumulator(),
            ScoreAggregator(),
            CounterBoard(),
            ClockOffsets(),
        )

        assert {type(model).__name__: model.result() for model in fresh if type(model) is not GoodputAccumulator} == {
            name: model.result() for name, model in live.items() if name != "GoodputAccumulator"
        }
        goodput = next(model for model in fresh if type(model) is GoodputAccumulator)
        assert goodput.result(session="test") == live["GoodputAccumulator"].result(session="test")

    def test_at_a_viewer_that_came_late(self, collectors, sent, attached, states, until):
        """
        A viewer that came in between has, in the end, the state of each of a collector's models.
        """
        collector = collectors(publish="tcp://127.0.0.1:*")
        pair = [sent(collector, rank) for rank in range(2)]
        for rank, job in enumerate(pair):
            job.work(seed=rank, steps=20)
        # Those of the two ranks, and that of another process, which the work itself reports.
        until(lambda: len({event.source_id for event in collector.heard(ClockCompared)}) == 3)
        models = [SpanBuilder(), GoodputAccumulator(), ScoreAggregator(), CounterBoard(), ClockOffsets()]
        viewer = attached(collector.viewer_endpoint, models=models, insecure=True)
        assert viewer.wait(60)
        for rank, job in enumerate(pair):
            job.work(seed=2 + rank, steps=20)
            job.end()
            job.close(timeout_s=60)
            job.leave()
        until(lambda: collector.totals()["ended"] == 2)
        ending = threading.Thread(target=collector.end)
        ending.start()

        assert sum(1 for _ in viewer) > 0
        ending.join()
        assert viewer.lost == 0
        assert all(joined.complete for joined in viewer.models.values())
        assert states(models) == states([model for model in collector.models if hasattr(model, "dump")])
        assert len(models[-1].result().offsets) == 3


class TestRestart:
    @pytest.mark.integration
    def test_killed_and_started_again(self, command_line, jobs, tmp_path, free_port, until):
        """
        A collector is killed while a job sends, and started again: the job reconnects by itself and nothing is lost.
        """
        arguments = ("collect", "--bind", f"tcp://127.0.0.1:{free_port}", "--log", tmp_path / "log", "--insecure")
        first = command_line(*arguments)
        first.stdout.readline()
        job = jobs(publish=False, collector=f"tcp://127.0.0.1:{free_port}", insecure=True, models=False)
        job.pace(per_s=2000)
        until(lambda: [path for path in (tmp_path / "log").rglob("*.tslog") if path.stat().st_size > 10_000])
        first.send_signal(signal.SIGKILL)
        first.wait()

        second = command_line(*arguments)
        assert "read back" in second.stdout.readline()
        logged = job.stop_logging()
        job.end()
        job.close(timeout_s=60)
        second.send_signal(signal.SIGTERM)
        output, complaints = second.communicate(timeout=100)

        report = next(one for one in check_logs(tmp_path / "log").sources if one.source.role == "main")
        assert (report.by_type[STEP], report.missing, report.ended) == (logged, 0, "closed"), output + complaints

    def test_what_passed_meanwhile_is_named(self, collectors, tmp_path):
        """Events that a ring no longer held when a collector came back are lost, and counted exactly."""
        source = Source.detect({}, run_id="run")
        log_writer = MultiLogWriter(tmp_path)
        log_writer.append(source, frame_of(source, 0, 9), 10)
        log_writer.close()
        collector = collectors(log=tmp_path)
        assert collector.restored.events == 10

        collection = collector.server.streams
        state = collection.registry.states[source.id]
        data = frame_of(source, 25, 29)
        collection._add(collection._decoder.decode(data), data, state)

        (lost,) = collector.heard(EventsLost)
        assert (lost.source_id, lost.first_seq, lost.last_seq) == (source.id, 10, 24)
        assert collector.totals()["lost"] == 15


class TestSilence:
    @pytest.mark.integration
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
    def test_named_with_its_span(self, collectors, sent, until, how):
        """
        A rank that is killed, or stopped, is named; the others are not.
        """
        collector = collectors(silent_after_s=8.0)
        pair = [sent(collector, rank, models=False) for rank in range(2)]
        for job in pair:
            job.log(count=10)
        until(lambda: collector.totals()["events"] >= 20)

        os.kill(pair[1].pid, how)
        start = time.monotonic()
        until(lambda: collector.heard(RankFellSilent))

        assert time.monotonic() - start < 60
        assert [event.rank for event in collector.heard(RankFellSilent)] == [1]
        assert collector.heard(RankFellSilent)[0].step == 9

    @pytest.mark.integration
    def test_stopped_one_speaks_again(self, collectors, sent, until):
        """A rank that goes on is reported as back, and nothing of it is lost."""
        collector = collectors(silent_after_s=1.5)
        job = sent(collector, models=False)
        job.log(count=10)
        until(lambda: collector.totals()["events"] >= 10)
        os.kill(job.pid, signal.SIGSTOP)
        until(lambda: collector.heard(RankFellSilent))

        os.kill(job.pid, signal.SIGCONT)
        job.log(count=10)

        until(lambda: collector.heard(RankSpokeAgain) and len(collector.heard(STEP)) == 20)
        assert collector.totals()["silent"] == 0

    def test_ended_rank_is_not_silent(self):
        """A rank that reported its end may be silent."""
        registry = SourceRegistry(silent_after_s=3.0)
        source = Source.detect({}, run_id="run")
        state = registry.state_of(source, 0.0)
        state.admit(Frame(source, 0, 0, {}, [SourceEnded(reason="closed")]))

        assert list(registry.silent(100.0, 0)) == []

    def test_said_once(self):
        """One silence is reported once, with the time of the last sign."""
        registry = SourceRegistry(silent_after_s=3.0)
        registry.state_of(Source.detect({}, run_id="run", rank=7), 10.0)

        recorded = [event for second in range(20) for event in registry.silent(10.0 + second, 10**9 * second)]

        assert [(event.rank, event.silent_s, event.last_heard_ns) for event in recorded] == [(7, 3.0, 0)]

    def test_not_said_again_after_a_restart(self, collectors, until, tmp_path):
        """A collector that was started again does not report the ranks again that it had reported before."""
        source, other = (Source.detect({}, run_id="run", rank=rank) for rank in (3, 4))
        log_writer = MultiLogWriter(tmp_path)
        for one in (source, other):
            log_writer.append(one, frame_of(one, 0, 9), 10)
        log_writer.close()
        first = collectors(log=tmp_path)
        first.streams.registry.states[source.id].heard_s -= 100.0
        (recorded,) = until(lambda: first.heard(RankFellSilent))
        assert (recorded.rank, recorded.last_heard_ns) == (3, 9)  # when its last event was
        first.end()

        second = collectors(log=tmp_path)
        for one in (source, other):
            second.streams.registry.states[one.id].heard_s -= 100.0

        assert [event.rank for event in until(lambda: second.heard(RankFellSilent))] == [4]


@pytest.mark.integration
class TestLimits:
    def test_noisy_peer_is_cut_and_counted(self, collectors, sent, until):
        """One rank sends more than its share: it is limited and named, and another's events all arrive."""
        collector = collectors(limits=PeerLimits(events=500.0))
        noisy, quiet = (sent(collector, rank, models=False) for rank in range(2))
        noisy.pace(per_s=20_000)
        quiet.log(count=100)
        until(lambda: sum(event.source.rank == 1 for event in collector.heard(STEP)) == 100)
        until(lambda: collector.heard(PeerCut))
        noisy.stop_logging()

        assert collector.heard(PeerCut)[0].messages > 0


class TestState:
    """The state that a collector of a stream stores, and goes on from."""

    def streams(self, now, said):
        """Return streams that note what they say of themselves, by the clock *now*."""

        def note(source, frame):
            if source.role == "collector":
                said.append(FrameDecoder().decode(frame).events[0])

        source = Source(id="collector", role="collector")
        return CollectedStreams(
            source, [GoodputAccumulator()], None, SourceRegistry(3.0), monotonic_s=lambda: now[0], broadcast=note
        )

    def test_goes_on(self):
        """A collector that loads a state knows the missing events, silent ranks and notices, and its numbers go on."""
        now, said_before, said = [100.0], [], []
        rank = Source(id="rank", rank=3)
        before, after = self.streams(now, said_before), self.streams(now, said)
        consume(before, rank, frame_of(rank, 0, 9), 100.0)
        now[0] = 104.0
        before.tick(())
        assert [type(event) for event in said_before] == [SourceStarted, RankFellSilent]

        after.load(msgpack.unpackb(msgpack.packb(before.dump())))
        said.clear()
        after.tick(())
        assert said == []
        consume(after, rank, frame_of(rank, 15, 19), 105.0)
        consume(after, rank, frame_of(rank, 0, 9), 106.0)

        spoke, lost = said
        assert isinstance(spoke, RankSpokeAgain)
        assert (spoke.seq, spoke.rank, spoke.silent_s) == (2, 3, 5.0)
        assert isinstance(lost, EventsLost)
        assert (lost.seq, lost.first_seq, lost.last_seq) == (3, 10, 14)
        totals = after.registry.totals()
        assert (totals["events"], totals["lost"], totals["repeated"], totals["silent"]) == (15, 5, 10, 0)

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"sources": [7]},
            {"sources": [{}]},
            {"models": []},
            {"models": [["x", {}]]},
            {"next_seq": "x"},
            {"next_seq": 2**63},
            {"counts": {"failed": -1}},
        ],
    )
    def test_another_state(self, change):
        """A state of another version, of other models or of a wrong form is refused."""
        streams = self.streams([100.0], [])
        with pytest.raises(DecodeError):
            streams.load({**streams.dump(), **change})

    @pytest.mark.parametrize(
        "change",
        [
            {"heard_s": math.inf},
            {"silent_s": math.nan},
            {"numbers": [2**63, 0, 0]},
            {"counts": [0, 0, "x"]},
            {"holes": [[0, 1]] * 1_001},
            {"signs": {"last_ns": "x"}},
            {"signs": {"end_reason": 7}},
            {"open_spans": {"MainThread": 7}},
        ],
    )
    def test_another_state_of_a_source(self, change):
        """A state in which something of a source is out of its range, or of another kind, is refused."""
        streams = self.streams([100.0], [])
        rank = Source(id="rank", rank=3)
        consume(streams, rank, frame_of(rank, 0, 9), 100.0)
        state = streams.dump()
        streams.load(state)
        with pytest.raises(DecodeError):
            streams.load({**state, "sources": [{**state["sources"][0], **change}]})


def consume(streams, source, data, heard_s):
    """Have *streams* take a frame of *source* as a worker does that reads it from a stream."""
    decoder = FrameDecoder()
    decoder.introduce(source)
    streams.consume(decoder.decode(data), data, heard_s)


class TestCuts:
    def test_under_ever_new_names(self):
        """
        Of 5,000 peers that are limited at the same moment 100 are reported, and a second later one more: each is
        recorded.
        """
        found = []
        source = Source(role="collector")
        collection = CollectedStreams(source, [found.append], None, SourceRegistry(), monotonic_s=lambda: 0.0)
        buckets = types.SimpleNamespace(cut_messages=1, cut_bytes=10)
        peers = [
            types.SimpleNamespace(name="x", buckets=buckets, cut_reported=0, cut_reported_s=-1e9, cut_since_ns=0)
            for _ in range(5_000)
        ]
        for peer in peers:
            collection._report_cut(peer, 0.0)
        assert sum(isinstance(event, PeerCut) for event in found) == 100
        for peer in peers:
            collection._report_cut(peer, 1.0)
        assert sum(isinstance(event, PeerCut) for event in found) == 101


class TestDescriptors:
    def test_context_needs_a_libzmq_that_is_safe(self, monkeypatch):
        """
        A libzmq with known holes is refused in one line that says what to install.
        """
        monkeypatch.setattr("zmq.zmq_version_info", lambda: (4, 3, 4))

        with pytest.raises(Exception, match=r"it must be 4\.3\.5 or newer"):
            new_context()


class TestServe:
    @pytest.mark.parametrize("place", ["the loop", "a message"])
    def test_exceptions_of_signal_handlers(self, place):
        """An exception that a signal handler of the program raises, as to end it, comes out of serve()."""
        with Collector("tcp://127.0.0.1:*", insecure=True) as collector, interrupting_once() as interrupt:
            if place == "the loop":
                collector.receiver.tick = interrupt
            else:
                collector.receiver._receive = lambda *_, **__: interrupt()
                collector._receiving.receive = lambda _most: iter([(b"peer", [b""], "")])
            with pytest.raises(Interruption):
                collector.serve()

"""The collectors of a stream: real workers, killed and stopped at random, against the real server."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime
import gc
import json
import random
import shutil
import signal
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from itertools import islice

import pytest

import trackside
from ports import free_port
from trackside.bus import Bus
from trackside.cli import main
from trackside.core.leases import Lease, LeaseWrite
from trackside.events import (
    ConfigError,
    DecodeError,
    EventsLost,
    Heartbeat,
    IterationEnded,
    RankFellSilent,
    RankSpokeAgain,
    SectionWindow,
    Source,
    StragglerReport,
    UnreadableError,
)
from trackside.handlers import replay
from trackside.handlers.export import encoded_source
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.zeromq import Result, command
from trackside.wire import RowEncoder, encode_frame, fields_of, pack

nats = pytest.importorskip("nats")

from nats.js.api import ClusterInfo, RawStreamMsg, StreamConfig, StreamInfo, StreamState  # noqa: E402  it may be missing
from nats.js.errors import KeyWrongLastSequenceError, NotFoundError  # noqa: E402

from nats_streams import answers, collector_of, replayed  # noqa: E402  it imports the library
from trackside.handlers.nats import NatsCollector, NatsReader, NatsSink, collected, sink_to  # noqa: E402  so does this
from trackside.handlers.nats._collect import RunCollection, _Checkpoint, _NatsSession, _Store, stored_run  # noqa: E402
from trackside.handlers.nats._stream import StreamAddress, StreamMessage, create_stream  # noqa: E402
from trackside.handlers.zeromq._collector import collector_models  # noqa: E402

pytestmark = pytest.mark.integration

STREAM = "runs"
LEASE_S = 1.5


@pytest.fixture
def address(nats_server):
    """Return the address of the stream."""
    return f"{nats_server.url}/{STREAM}"


class Workers:
    """Worker processes."""

    SCRIPT = textwrap.dedent(
        """
        import signal, sys
        from trackside.core.leases import LeaseTable
        from trackside.handlers.nats import NatsCollector
        if sys.argv[3:]:
            LeaseTable.held = property(lambda table: frozenset(table._jobs))
        leases = {"lease_s": float(sys.argv[2])} if sys.argv[2] else {}
        collector = NatsCollector(sys.argv[1], **leases, checkpoint_interval_s=0.1, silent_after_s=60)
        signal.signal(signal.SIGTERM, lambda *_: collector.stop())
        collector.serve()
        """
    )

    def __init__(self, address):
        self.address = address
        self.running = []

    def start(self, *, lease_s=LEASE_S, is_greedy=False):
        """Start one more, with leases as by default if that is empty; a greedy one believes that it holds all."""
        command = [sys.executable, "-c", self.SCRIPT, self.address, str(lease_s)]
        command += ["holds all"] if is_greedy else []
        self.running.append(subprocess.Popen(command))

    def kill(self, worker):
        """End one at once."""
        self.running.remove(worker)
        worker.kill()
        worker.wait()

    def end(self):
        """End all, as if the machine had stopped."""
        for worker in list(self.running):
            self.kill(worker)


@pytest.fixture
def workers(address):
    """Return worker processes, which end with the test."""
    found = Workers(address)
    yield found
    found.end()


def publish_job(server, run, rank, rng, *, windows, pause_s=0.0):
    """Publish a rank's events: steps, heartbeats, and the times of sections, of which rank 1 needs twice as long."""
    source = Source.detect({}, run_id=run, rank=rank, world_size=2, application="demo")
    with Bus(source=source) as bus:
        bus.subscribe(NatsSink(server.url, stream=STREAM))
        for window in range(windows):
            for step in range(10 * window, 10 * window + 10):
                bus.log(
                    IterationEnded(step=step, span_id=step + 1, duration_ns=rng.randrange(10**6, 10**8), tokens=4096)
                )
            time_ns = rng.uniform(1e6, 1.1e6) * (1 + rank)
            times = {key: [time_ns] for key in ("min_ns", "max_ns", "median_ns", "mean_ns")}
            bounds = {"window": window, "first_step": 10 * window, "last_step": 10 * window + 9, "start_ns": window}
            bus.log(SectionWindow(**bounds, **times, std_ns=[0.0], names=["step"], counts=[10], entries=[10]))
            bus.log(Heartbeat(sequence=window, interval_s=1.0))
            assert bus.flush(60)
            time.sleep(rng.random() * pause_s)


def streamed(address, kind):
    """Return the events of *kind* that collectors published, by run, all of which are numbered without a gap."""
    found = collections.defaultdict(list)
    with NatsReader(address.rpartition("/")[0], stream=STREAM, follow=False) as events:
        for event in events:
            if event.source.role == "collector":
                found[event.source.run_id].append(event)
        assert events.repeated == 0
    for run, events in found.items():
        assert len({event.source.id for event in events}) == 1, run
        assert [event.seq for event in events] == list(range(len(events)))
    return {run: [event for event in events if type(event) is kind] for run, events in found.items()}


def is_read(address, run):
    """Whether the collectors have stored what one reading of the stream says."""
    try:
        return answers(collected(f"{address}/{run}").models) == replayed(address, run)[0]
    except UnreadableError:
        return False


def is_said(address, run):
    """Whether the stream has as many reports of a run as one reading of it derives."""
    return len(streamed(address, StragglerReport).get(run, ())) >= len(replayed(address, run)[1])


class TestTakeover:
    def test_by_default(self, nats_server, address, workers, eventually):
        """With leases of the default length another worker goes on within seconds with what a killed one had."""
        workers.start(lease_s="")
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="it is read")
        workers.start(lease_s="")
        workers.kill(workers.running[0])
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="the other one has read the rest", timeout_s=30)

    @pytest.mark.parametrize("number", range(3))
    def test_any_kills(self, nats_server, address, workers, eventually, number):
        """
        Workers are killed, stopped and continued at random while three runs are published. In the end what they have
        stored of each run equals one reading of its stream, and each report is in the stream once.
        """
        rng = random.Random(number)
        runs = ("first", "second", "third")
        for _ in range(3):
            workers.start()
        ranks = [
            threading.Thread(
                target=publish_job,
                args=(nats_server, run, rank, random.Random(f"{number}{run}{rank}")),
                kwargs={"windows": 40, "pause_s": 0.5},
            )
            for run in runs
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        stopped = None
        kills = 0
        while any(rank.is_alive() for rank in ranks):
            time.sleep(rng.uniform(0.2, 1.2))
            worker = rng.choice(workers.running)
            if stopped is not None:
                stopped.send_signal(signal.SIGCONT)  # it may hold what others have taken meanwhile
                stopped = None
            elif rng.random() < 0.3:
                worker.send_signal(signal.SIGSTOP)
                stopped = worker
                time.sleep(rng.uniform(0, 2 * LEASE_S))
            else:
                workers.kill(worker)
                workers.start()
                kills += 1
        if stopped is not None:
            stopped.send_signal(signal.SIGCONT)
        assert kills > 3
        for run in runs:
            eventually(lambda run=run: is_read(address, run), what=f"{run} is read")
        for run in runs:
            expected = replayed(address, run)[1]
            assert len(expected) >= 38
            eventually(lambda run=run: is_said(address, run), what="the reports are in the stream")
            reports = streamed(address, StragglerReport)[run]
            assert [fields_of(event) for event in reports] == expected

    def test_replaced_within_seconds(self, nats_server, address, workers, eventually):
        """After the only worker was killed, another one that waits goes on within seconds."""
        workers.start()
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="the first one has read it")
        workers.start()
        workers.kill(workers.running[0])
        publish_job(nats_server, "run", 1, random.Random(2), windows=2)
        began_s = time.monotonic()
        eventually(lambda: is_read(address, "run"), what="the second one has read it")
        assert time.monotonic() - began_s < 20
        assert len(collected(f"{address}/run").models[1].result().ranks) == 2

    def test_two_that_both_hold(self, nats_server, address, workers, eventually):
        """Of workers that take themselves for the only ones, none stores or says anything that the others did."""
        for _ in range(3):
            workers.start(is_greedy=True)
        publish_job(nats_server, "run", 0, random.Random(1), windows=20, pause_s=0.3)
        publish_job(nats_server, "run", 1, random.Random(2), windows=20, pause_s=0.3)
        eventually(lambda: is_read(address, "run"), what="the run is read")
        eventually(lambda: is_said(address, "run"), what="the reports are in the stream")
        reports = streamed(address, StragglerReport)["run"]
        assert [fields_of(event) for event in reports] == replayed(address, "run")[1]
        assert len(reports) >= 18


async def damaged(jetstream, damage):
    """Damage what is stored of the run."""
    store = _Store(jetstream, STREAM)
    await store.open()
    found = await store.load("run")
    state = dict(found.state)
    if damage == "bytes":
        await store.bucket.put("state.run", b"no checkpoint")
    elif damage == "object":
        value = {"object": "run.removed", "previous": "", "created": found.created, "state": b""}
        await store.bucket.put("state.run", pack(value))
    elif damage == "parts":
        await store.store("run", pack({**state, "padding": bytes(1_000_000)}), found, found.created)
        bucket = f"{STREAM}-collect"
        await jetstream.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.>")
    else:
        change = {"version": 99, "outbox": [b"no frame"], "sequence": -1}[damage]
        await store.store("run", pack({**state, damage: change}), found, found.created)


@pytest.fixture
def collecting(address):
    """Return a function that starts a collector on a thread of this process, and ends it with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(collector_of(address, **options))


class TestStore:
    """A checkpoint, as the worker's own part of the module stores it."""

    @pytest.mark.parametrize("size", [10, 2_000_000])
    def test_one_of_two_is_refused(self, nats_server, size):
        """Of two that replace the same checkpoint the second is refused, and what the first one stored is kept."""

        async def use(jetstream):
            stores = [_Store(jetstream, STREAM) for _ in range(2)]
            for store in stores:
                await store.open(1)
            first = await stores[0].store("run", pack(["a" * size]), await stores[0].load("run"), "")
            with pytest.raises(KeyWrongLastSequenceError):
                await stores[1].store("run", pack(["b" * size]), _Checkpoint(), "")
            found = await stores[1].load("run")
            assert (found.state, found.revision) == (["a" * size], first.revision)
            second = await stores[1].store("run", pack(["c" * size]), found, "")
            await stores[1].clean("run", second)
            with pytest.raises(KeyWrongLastSequenceError):
                await stores[0].store("run", pack(["d" * size]), first, "")
            assert (await stores[0].load("run")).state == ["c" * size]

        nats_server.call(use)

    def test_what_the_dead_left(self, nats_server):
        """Objects of workers that died before they became valid are removed; those in use and of other runs stay."""

        async def use(jetstream):
            store = _Store(jetstream, STREAM)
            await store.open(1)
            other = await store.store("other", pack(["o" * 2_000_000]), _Checkpoint(), "")
            first = await store.store("run", pack(["a" * 2_000_000]), _Checkpoint(), "")
            with pytest.raises(KeyWrongLastSequenceError):
                await store.store("run", pack(["b" * 2_000_000]), _Checkpoint(), "")
            second = await store.store("run", pack(["c" * 2_000_000]), first, "")
            await store.clean("run", second)
            objects = await jetstream.object_store(f"{STREAM}-collect")
            names = {info.name for info in await objects.list()}
            assert names == {other.object_name, first.object_name, second.object_name}

        nats_server.call(use)


class TestOne:
    def test_state_that_is_larger_than_a_message(self, nats_server, address, collecting, eventually):
        """A state beyond the limit of messages is stored whole, replaced by later ones, and gone on from."""
        padding = "x" * 60_000

        class Everything:
            """A model that keeps what it read."""

            def __init__(self):
                self.kept = []

            def consume(self, frame):
                self.kept += [[event.step, padding] for event in frame.events if isinstance(event, IterationEnded)]

            def dump(self):
                return {"kept": self.kept}

            def load(self, state):
                self.kept = state["kept"]

        def models(publish):
            return [Everything()]

        def kept():
            try:
                return [step for step, _ in collected(f"{address}/run", models=models).models[0].kept]
            except UnreadableError:
                return []

        collector = collecting(models=models)
        publish_job(nats_server, "run", 0, random.Random(1), windows=4)
        eventually(lambda: kept() == list(range(40)), what="2.4 MB are stored")
        collector.stop()
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        collecting(models=models)
        eventually(lambda: kept() == [*range(40), *range(20)], what="what came later is stored with it")

    def test_hands_over_when_stopped(self, nats_server, address, collecting, eventually):
        """A collector that is stopped hands its runs over: another one has them before a lease of a minute is over."""
        first = collecting(lease_s=60.0)
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="it is read")
        first.stop()
        collecting(lease_s=60.0)
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="the other one has read the rest")

    def test_where_a_loop_runs(self, nats_server, address, eventually):
        """In a notebook, whose own thread runs an event loop, a collector works until it is interrupted."""
        collector = NatsCollector(address, lease_s=LEASE_S, checkpoint_interval_s=0.1)

        async def cell():
            collector.serve()

        def interrupt():
            publish_job(nats_server, "run", 0, random.Random(1), windows=2)
            with contextlib.suppress(AssertionError):
                eventually(lambda: is_read(address, "run"), what="it is read", timeout_s=20)
                found.append("read")
            if loop.is_running():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        found, loop, other = [], asyncio.new_event_loop(), threading.Thread(target=interrupt)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run may ignore it
        other.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(cell())
        finally:
            other.join()
            signal.signal(signal.SIGINT, before)
            loop.close()
        assert found == ["read"]

    @pytest.mark.parametrize("number", range(3))
    def test_garbage(self, nats_server, address, collecting, eventually, number):
        """
        Damaged frames, noise up to the largest message and headers of any kind, in a run's subjects and in those of
        collectors: a worker counts what is no frame, and it and a viewer go on with what the rank publishes.
        """
        rng = random.Random(number)
        source = Source.detect({}, run_id="run", rank=7)
        frame = encode_event(source, IterationEnded(step=0, span_id=1, duration_ns=1))
        headers = ["", "{}", "[]", "9" * 4000, encoded_source(source)]

        def garbage():
            size = rng.choice([0, 1, 50, 5_000, 1_000_000])
            noise = bytearray(rng.choice([frame, frame[: rng.randrange(len(frame))], rng.randbytes(size)]))
            for _ in range(rng.randrange(1, 4)):
                if noise:
                    noise[rng.randrange(len(noise))] = rng.randrange(256)
            subject = rng.choice(["run.0.x", "run.7.x", "run.collector.x", "run.collector.a.b", "run"])
            return f"{STREAM}.{subject}", bytes(noise), {"Trackside-Source": rng.choice(headers)}

        async def publish(jetstream):
            for _ in range(60):
                subject, noise, header = garbage()
                await jetstream.publish(subject, noise, headers=header)

        collector = collecting(silent_after_s=600)
        publish_job(nats_server, "run", 0, random.Random(1), windows=1)
        with trackside.attach(address, to=IterationEnded) as viewer:
            nats_server.call(publish)
            publish_job(nats_server, "run", 1, random.Random(1), windows=2)
            steps = [event.step for event in islice((one for one in viewer if one.source.rank == 1), 20)]
            assert steps == [*range(20)]
            assert viewer.malformed > 30
        last = nats_server.call(lambda jetstream: jetstream.stream_info(STREAM)).state.last_seq
        place = StreamAddress.parse(f"{address}/run")

        def read():
            found = stored_run(place)
            return found and found[0].sequence > last and found[0].unreadable

        assert eventually(read, what="the worker has read all") > 10
        assert collector.counts["given up"] == 0

    @pytest.mark.parametrize("name", [b"\x1b[2J", b"\xff"])
    def test_run_with_a_name_that_no_sink_gives(self, nats_server, address, collecting, eventually, *, name):
        """A message under a run's name that cannot be a key is passed over, and the other runs are collected."""
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        nats_server.publish_raw(b"runs." + name + b".0.x", b"NATS/1.0\r\n\r\n")
        collector = collecting()
        eventually(lambda: collector.counts["over"] == 1, what="the run is read to its end")
        assert (collector.counts["runs"], collector.counts["given up"]) == (1, 0)

    def test_sum_of_more_than_64_bits(self, nats_server, address, collecting, eventually):
        """A run whose sums 64 bits do not hold is collected to its end; the largest number is stored, and said."""
        with Bus(source=Source.detect({}, run_id="run", rank=0)) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            for step in range(4):
                bus.log(IterationEnded(step=step, span_id=step + 1, duration_ns=2**63 - 1))
            assert bus.flush(60)
        collector = collecting()
        eventually(lambda: collector.counts["over"] == 1, what="it is read to its end")
        assert collector.counts["given up"] == 0

    @pytest.mark.parametrize("damage", ["bytes", "version", "outbox", "sequence", "object", "parts"])
    def test_checkpoint_that_cannot_be_used(self, nats_server, address, collecting, eventually, *, damage):
        """A run whose checkpoint is damaged, or of another version, is read from its start, and stored again."""
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        first = collecting()
        eventually(lambda: first.counts["over"] == 1, what="it is stored")
        first.stop()
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        nats_server.call(lambda jetstream: damaged(jetstream, damage))
        with pytest.raises(DecodeError):
            collected(f"{address}/run")
        second = collecting()
        eventually(lambda: second.counts["over"] == 1, what="it is read to its end")
        assert (second.counts["unusable"], second.counts["given up"]) == (1, 0)
        assert len(collected(f"{address}/run").cursor["sources"]) == 3  # two ranks and the collector itself

    def test_most_runs_of_a_worker(self, nats_server, address, collecting, eventually, *, monkeypatch):
        """A worker that may have one run at a time reads three, one after the other."""
        monkeypatch.setattr("trackside.handlers.nats._collect.MAX_RUNS", 1)
        for number in range(3):
            publish_job(nats_server, f"run-{number}", 0, random.Random(1), windows=1)
        collector = collecting()
        eventually(lambda: collector.counts["over"] == 3, what="all are read to their ends")
        assert all(is_read(address, f"run-{number}") for number in range(3))

    def test_run_that_is_over(self, nats_server, address, collecting, eventually):
        """A run whose ranks have ended is let go, and taken again when there is more of it."""
        collector = collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: collector.counts["over"] == 1, what="it is let go")
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        eventually(lambda: collector.counts["over"] == 2, what="it is let go again")
        assert is_read(address, "run")
        assert collector.counts["given up"] == 0

    def test_over_and_shortened(self, nats_server, address, collecting, eventually):
        """A run that is over is not taken again because its oldest message was removed."""
        collector = over_and_shortened(nats_server, collecting, eventually)
        assert (collector.counts["runs"], collector.counts["over"]) == (2, 2)

    def test_shortened_and_continued(self, nats_server, address, collecting, eventually):
        """A message of a run that is over is read, also while more of its messages were removed than came."""
        over_and_shortened(nats_server, collecting, eventually)
        late = Source.detect({}, run_id="run", rank=1)
        frame = encode_event(late, IterationEnded(step=0, span_id=1, duration_ns=1))
        headers = {"Trackside-Source": encoded_source(late)}
        nats_server.call(lambda jetstream: jetstream.publish(f"{STREAM}.run.1.late", frame, headers=headers))
        eventually(lambda: late.id in collected(f"{address}/run").cursor["sources"], what="it is read")

    @pytest.mark.parametrize("entry", [b'{"done": "3"}', b'{"done": 1000, "mark": 7}'])
    def test_entry_that_is_no_lease(self, nats_server, address, collecting, eventually, *, entry):
        """A run under whose key the store has anything else than a lease is collected."""

        async def put(jetstream):
            store = _Store(jetstream, STREAM)
            await store.open(1)
            await store.bucket.put("lease.job.run", entry)

        nats_server.call(put)
        publish_job(nats_server, "run", 0, random.Random(1), windows=1)
        collector = collecting()
        eventually(lambda: collector.counts["over"] == 1, what="it is read to its end")

    def test_server_restarts(self, nats_server, address, collecting, eventually):
        """A collector waits for a server that goes away, and goes on."""
        collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="it is read")
        nats_server.stop()
        nats_server.start()
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="the rest is read")

    def test_stream_is_removed(self, nats_server, address, collecting, eventually):
        """Of a stream that is removed and created again a collector has the answers to the new one, not to both."""
        collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=3)
        eventually(lambda: is_read(address, "run"), what="it is read")
        nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="the new one is read")

    def test_reader_goes_on_from_the_checkpoint(self, nats_server, address, collecting, eventually):
        """A reader that begins at the cursor of what is stored reads what came later, each once."""
        collector = collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=3)
        eventually(lambda: is_read(address, "run"), what="it is read")
        collector.stop()
        found = collected(f"{address}/run")
        publish_job(nats_server, "run", 1, random.Random(1), windows=2)
        with NatsReader(nats_server.url, stream=STREAM, cursor=found.cursor, follow=False) as events:
            trackside.feed(events, *found.models)
            assert events.missing == 0
        assert answers(found.models) == replayed(address, "run")[0]

    def test_cursor_of_a_removed_stream(self, nats_server, address, collecting, eventually):
        """The cursor of what is stored skips nothing of a stream that is created anew after it."""
        collector = collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=2)
        eventually(lambda: is_read(address, "run"), what="it is read")
        collector.stop()
        cursor = collected(f"{address}/run").cursor
        nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))
        publish_job(nats_server, "run", 1, random.Random(1), windows=4)

        def count(begin):
            with NatsReader(nats_server.url, stream=STREAM, cursor=begin, follow=False) as events:
                return len(list(events))

        assert count(cursor) == count(None) > 0

    def test_missing_events_are_named(self, nats_server, address, collecting, eventually):
        """Events that the stream no longer has when a run is read are published as lost, with their numbers."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            for step in range(3):
                bus.log(IterationEnded(step=step, duration_ns=1))
                assert bus.flush(30)
        nats_server.call(lambda jetstream: jetstream.delete_msg(STREAM, 2))
        collecting()
        eventually(lambda: streamed(address, EventsLost).get("run"), what="the loss is named")
        (lost,) = streamed(address, EventsLost)["run"]
        assert (lost.first_seq, lost.last_seq, lost.reason) == (2, 2, "not in the stream")
        assert [event for event in replay(f"{address}/run") if isinstance(event, EventsLost)] == [lost]


def over_and_shortened(server, collecting, eventually):
    """Return a collector for which a run is over of which two messages were removed since, and so is another run."""
    publish_job(server, "run", 0, random.Random(1), windows=3)
    collector = collecting()
    eventually(lambda: collector.counts["over"] == 1, what="it is let go")
    server.call(lambda jetstream: jetstream.purge_stream(STREAM, seq=3))
    publish_job(server, "another", 0, random.Random(1), windows=1)
    eventually(lambda: collector.counts["over"] == 2, what="the collector has looked at the stream since")
    return collector


class TestSilence:
    def test_rank_is_named_once(self, nats_server, address, collecting, eventually):
        """A rank that falls silent is named once, also by who takes over, and so is that it speaks again."""
        collector = collecting()
        with Bus(source=Source.detect({}, run_id="run", rank=3, world_size=4)) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            bus.log(Heartbeat(sequence=0, interval_s=1.0, step=7))
            assert bus.flush(30)
            eventually(lambda: streamed(address, RankFellSilent).get("run"), what="the silence is named")
            (fell,) = streamed(address, RankFellSilent)["run"]
            assert (fell.rank, fell.run_id, fell.step, fell.last_seq) == (3, "run", 7, 1)
            assert fell.silent_s >= 3
            collector.stop()
            collecting()
            bus.log(Heartbeat(sequence=1, interval_s=1.0, step=8))
            assert bus.flush(30)
            eventually(lambda: streamed(address, RankSpokeAgain).get("run"), what="that it speaks is said")
        assert len(streamed(address, RankFellSilent)["run"]) == 1
        assert len(streamed(address, RankSpokeAgain)["run"]) == 1
        assert [event for event in replay(f"{address}/run") if isinstance(event, RankFellSilent)] == [fell]

    @pytest.mark.parametrize(("given_s", "named_after_s"), [(None, 15), (4.0, 4)])
    def test_node_may_have_gone(self, given_s, named_after_s):
        """
        In a cluster a living rank may need 15 s to find another node: it is not named before, and one that stays
        silent is. An interval that was given stands.
        """
        rank = Source.detect({}, run_id="run", rank=3)
        frame = encode_event(rank, Heartbeat(sequence=0, interval_s=1.0))
        times_s = [1_000.0]
        run = RunCollection(Source.detect({}, run_id="run"), lambda publish: [], given_s, lambda: times_s[-1])
        run.consume(StreamMessage(1, frame, encoded_source(rank), "runs.run.3.x", 1_000.0, 0))
        run.sent()
        while not run.outbox:
            times_s.append(times_s[-1] + 1)
            run.tick(least_silence_s=15.0)
        assert times_s[-1] == 1_000 + named_after_s

    def test_stream_was_away(self):
        """
        While the stream does not answer, and for 15 s after that, nobody is named: living ranks are on their way back.
        """
        session = _NatsSession(NatsCollector("nats://127.0.0.1:1/runs"), Answering())
        now_s = time.monotonic()
        session._answered_s = session._steady_s = now_s - 16
        asyncio.run(session._look())
        assert session._steady_s >= now_s  # it was not asked for 16 s
        for answered_s, steady_s, is_steady in ((0, -16, True), (0, -14, False), (-3, -16, False)):
            session._answered_s, session._steady_s = now_s + answered_s, now_s + steady_s
            assert session._is_steady(now_s) is is_steady

    @pytest.mark.parametrize(("cluster", "least_s"), [(None, 0), (ClusterInfo("node-1", "nodes", None), 15)])
    def test_cluster_with_one_replica(self, cluster, least_s):
        """Also where one node of a cluster alone has the stream, ranks may lose theirs: silence is named after 15 s."""
        session = _NatsSession(NatsCollector("nats://127.0.0.1:1/runs"), Answering(cluster))
        asyncio.run(session._look())
        assert session._least_silence_s == least_s


class TestRelease:
    """A run that is over is released, as the worker's own part of the module does it."""

    @pytest.mark.parametrize("is_renewed", [True, False])
    def test_while_its_lease_is_renewed(self, is_renewed, *, monkeypatch):
        """It is released also while a renewal of its lease waits for the store's answer, and is counted once."""

        async def work():
            collector = NatsCollector("nats://127.0.0.1:1/runs")
            session = _NatsSession(collector, Answering())
            store = session._store = SlowStore()
            read = asyncio.Event()

            async def read_all(job):
                await read.wait()
                return Lease(done=3)

            session._amounts = {"run": 3}
            monkeypatch.setattr(session, "_collect_until_released", read_all)
            await session._divide()
            if is_renewed:
                session._leases._renewed_s["run"] -= collector.lease_s / 2
                store.is_slow = True
                renewing = asyncio.create_task(session._divide())
                await store.accepted.wait()
            read.set()
            for _ in range(10):
                await asyncio.sleep(0)
            if is_renewed:
                store.answer.set()
                await renewing
            await asyncio.gather(*session._tasks.values())
            await session._divide()
            return collector.counts, store.entries["job.run"], session._leases.held

        counts, (_, entry), held = asyncio.run(work())
        assert (counts["runs"], counts["over"]) == (1, 1)
        assert (entry, held) == (Lease(done=3), frozenset())

    @pytest.mark.parametrize("done", [3, -1])
    def test_after_another_took_it(self, done, *, monkeypatch):
        """A run that another worker has taken meanwhile stays with that one, and is not counted as over."""

        async def work():
            collector = NatsCollector("nats://127.0.0.1:1/runs")
            session = _NatsSession(collector, Answering())
            store = session._store = SlowStore()
            taken = asyncio.Event()

            async def read_all(job):
                await taken.wait()
                return Lease(done=done)

            session._amounts = {"run": 3}
            monkeypatch.setattr(session, "_collect_until_released", read_all)
            await session._divide()
            assert await store.write(LeaseWrite("job.run", Lease("another"), 1)) == 2
            session._leases.see("job.run", 2, Lease("another"), time.monotonic())
            taken.set()
            await asyncio.gather(*session._tasks.values())
            return store.entries["job.run"], collector.counts["over"]

        assert asyncio.run(work()) == ((2, Lease("another")), 0)


class TestShortened:
    """The sizes by which runs are taken that were over with nine messages, of which the stream has one."""

    OVER = Lease(done=9, mark=f"{datetime.datetime.min} 50")

    @pytest.mark.parametrize(
        "mark", ["", "50", f"{datetime.datetime.max} 50", f"{datetime.datetime.min} 102", f"{datetime.datetime.min} x"]
    )
    def test_other_stream(self, mark):
        """A run that was read in another stream, or before the disk of this one lost what was read, is to be read."""
        assert sizes_of(Shortened(1), Lease(done=9, mark=mark)) == [{"run-0": 1}]

    def test_many(self):
        """The server is asked of 32 runs at a time, and once of each; the others wait for the next time."""
        server = Shortened(40)
        first, *others = sizes_of(server, self.OVER, looks=3)
        assert first == {f"run-{number}": 9 for number in range(32)}
        assert others == [{f"run-{number}": 9 for number in range(40)}] * 2
        assert len(server.asked) == 40

    def test_many_that_shrink(self):
        """If all runs have another amount at each time, those are asked of first that were asked of longest ago."""
        server = Shortened(40)
        sizes_of(server, self.OVER, looks=3, amounts=[3, 2, 1])
        assert collections.Counter(server.asked) == {f"run-{n}": 3 if n < 16 else 2 for n in range(40)}

    @pytest.mark.parametrize(
        ("words", "size"),
        [([], 9), (["0"], 1), (["collector"] * 63, 9), ([*["collector"] * 63, "0"], 1), (["collector"] * 64, 1)],
    )
    def test_collectors_messages(self, words, size):
        """Messages that collectors published after the end are passed over, but not more than 63."""
        assert sizes_of(Shortened(1, words), self.OVER) == [{"run-0": size}]


def sizes_of(server, lease, looks=1, amounts=(1, 1, 1)):
    """Return the sizes of runs after each look of a worker to which the store has shown *lease* for all runs."""
    session = _NatsSession(NatsCollector("nats://127.0.0.1:1/runs"), server)
    for run in server.runs:
        session._leases.see(f"job.{run}", 1, lease, 0.0)
    found = []
    for amount in amounts[:looks]:
        server.amount = amount
        session._answered_s = session._looked_s = -1e9
        asyncio.run(session._look())
        found.append(session._sizes())
    return found


class SlowStore:
    """Leases of which each write names the revision that it replaces; while it is slow, answers wait for an event."""

    def __init__(self):
        self.entries = {}
        self.is_slow = False
        self.accepted, self.answer = asyncio.Event(), asyncio.Event()

    async def write(self, write):
        """Write if the revision is the latest one."""
        revision, _ = self.entries.get(write.key, (0, None))
        if write.revision != revision:
            return None
        self.entries[write.key] = revision + 1, write.lease
        if self.is_slow:
            self.accepted.set()
            await self.answer.wait()
        return revision + 1


class Answering:
    """A connection whose server, alone or in a cluster, has a stream without messages."""

    def __init__(self, cluster=None):
        self._cluster = cluster

    def jetstream(self, timeout):
        """Return what asks it."""
        return self

    async def stream_info(self, name, subjects_filter=None):
        """Answer."""
        return StreamInfo(StreamConfig(name), StreamState(0, 0, 0, 0, 0), cluster=self._cluster)


class Shortened(Answering):
    """One whose stream has lost messages of runs; those from 50 on have *words* in place of the rank."""

    def __init__(self, runs, words=()):
        super().__init__()
        self.runs = [f"run-{number}" for number in range(runs)]
        self.words = words
        self.amount = 1
        self.asked = []

    async def stream_info(self, name, subjects_filter=None):
        """Answer with the amounts of the runs."""
        subjects = {f"{name}.{run}.0.x": self.amount for run in self.runs}
        state = StreamState(0, 0, 0, 100, 0, subjects=subjects)
        return StreamInfo(StreamConfig(name), state, created=datetime.datetime.min)

    async def get_msg(self, stream_name, seq, **options):
        """Answer with the next message."""
        _, run, _ = options["subject"].split(".")
        self.asked.append(run)
        if seq >= 50 + len(self.words):
            raise NotFoundError
        return RawStreamMsg(subject=f"{stream_name}.{run}.{self.words[seq - 50]}.x", seq=seq)


def encode_event(source, event):
    """Return the frame of an event, the first one of a source."""
    schema, row = RowEncoder().encode(event, 0)
    return encode_frame(source.id, 0, 0, dropped={}, schemas=[schema.entry], rows=[row])


class TestViews:
    def test_tail_and_report(self, nats_server, address, collecting, eventually, capsys):
        """
        `tail` prints each score, silence and loss that workers published, once; `report` says which rank died and
        how many events are missing.
        """
        for rank in range(2):
            publish_job(nats_server, "run", rank, random.Random(rank), windows=3)
        with Bus(source=Source.detect({}, run_id="run", rank=2, world_size=3)) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            for step in range(3):
                bus.log(IterationEnded(step=step, duration_ns=1))
                assert bus.flush(30)
                if step == 1:
                    nats_server.call(delete_last)
            bus.log(Heartbeat(sequence=0, interval_s=1.0, step=2))
            assert bus.flush(30)
            collecting()
            eventually(lambda: streamed(address, RankFellSilent).get("run"), what="the silence is named")
            assert main(["tail", f"{address}/run", "-t", "*.straggler.*", "-t", "*.silent", "-t", "*.lost"]) == 0
            printed = capsys.readouterr().out.splitlines()
            assert main(["report", f"{address}/run"]) == 0
            report = " ".join(capsys.readouterr().out.split())
        assert sum("straggler.report" in line for line in printed) == len(replayed(address, "run")[1]) >= 3
        (silent,) = [line for line in printed if "rank.silent" in line]
        (lost,) = [line for line in printed if "events.lost" in line]
        assert " rank=2 " in silent
        assert " first_seq=2  last_seq=2  reason=not in the stream " in lost
        assert "Rank 2 died" in report
        assert "1 event missing" in report


class TestViewer:
    def test_has_state_and_stream(self, nats_server, address, collecting, eventually):
        """A viewer that comes late has the answers of one reading: the state as stored, and all that is behind it."""
        collector = collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=3)
        eventually(lambda: is_read(address, "run"), what="it is read")
        collector.stop()
        models = collector_models(lambda event: None)
        with trackside.attach(f"{address}/run", models=models) as viewer:
            assert [joined.complete for joined in viewer.models.values()] == [True] * 5
            publish_job(nats_server, "run", 1, random.Random(1), windows=2)
            read_to_the_end(viewer, models, address, eventually)
            assert (viewer.lost, viewer.malformed) == (0, 0)

    def test_comes_late(self, nats_server, address, collecting, eventually):
        """
        Viewers that come one after the other, while two ranks publish and a collector stores its state once a second,
        have the answers of one reading each: nothing is missing between state and stream, nothing is there twice.
        """
        collector = collecting(checkpoint_interval_s=1.0)
        ranks = [
            threading.Thread(
                target=publish_job,
                args=(nats_server, "run", rank, random.Random(rank)),
                kwargs={"windows": 30, "pause_s": 0.2},
            )
            for rank in range(2)
        ]
        with contextlib.ExitStack() as stack:
            for rank in ranks:
                rank.start()
                stack.callback(rank.join)
            viewers = []
            for seen in (5, 15, 25, 35, 45):
                eventually(lambda seen=seen: collector.counts["messages"] >= seen, what="the collector has seen more")
                models = collector_models(lambda event: None)
                viewer = stack.enter_context(trackside.attach(f"{address}/run", models=models))
                assert [joined.complete for joined in viewer.models.values()] == [True] * 5
                viewers.append((viewer, models))
            for rank in ranks:
                rank.join()
            for viewer, models in viewers:
                read_to_the_end(viewer, models, address, eventually)
                assert (viewer.lost, viewer.malformed) == (0, 0)

    def test_comes_before_any_collector(self, nats_server, address, eventually):
        """Models over a run of which nothing is stored begin with its first message."""
        publish_job(nats_server, "run", 0, random.Random(1), windows=3)
        models = collector_models(lambda event: None)
        with trackside.attach(f"{address}/run", models=models) as viewer:
            assert [joined.complete for joined in viewer.models.values()] == [True] * 5
            read_to_the_end(viewer, models, address, eventually)
            assert (viewer.lost, viewer.malformed) == (0, 0)

    def test_first_messages_are_gone(self, nats_server, address):
        """Of such a run the models count what the stream no longer has: the start of the source and two steps."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(4))
            nats_server.call(lambda jetstream: jetstream.purge_stream(STREAM, seq=3))
            models = collector_models(lambda event: None)
            with trackside.attach(f"{address}/run", models=models, to=IterationEnded) as viewer:
                assert [event.step for event in islice(viewer, 2)] == [2, 3]
                assert [viewer.lost, *(model.dump()["missed"] for model in models)] == [3] * 6

    def test_stream_discards_what_the_state_lacks(self, nats_server, address, eventually):
        """
        Of the six steps since a state was stored the stream has discarded four: who begins with the state counts four,
        and so does the next worker, which says which ones.
        """
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            with collector_of(address):
                log_steps(bus, range(3))
                eventually(lambda: is_read(address, "run"), what="it is read")
            log_steps(bus, range(3, 9))
            nats_server.call(lambda jetstream: keep_last(jetstream, 2))
            models = collector_models(lambda event: None)
            with trackside.attach(f"{address}/run", models=models, to=IterationEnded) as viewer:
                assert [event.step for event in islice(viewer, 2)] == [7, 8]
                assert [viewer.lost, *(model.dump()["missed"] for model in models)] == [4] * 6
            with collector_of(address):
                (lost,) = eventually(lambda: list(replay(f"{address}/run", to=EventsLost)), what="the loss is named")
                assert (lost.first_seq, lost.last_seq) == (4, 7)  # step 0 is number 1, after the start of the source

    @pytest.mark.parametrize("how", [["--once"], []], ids=["once", "until the job has ended"])
    def test_top(self, nats_server, address, collecting, eventually, capsys, *, how):
        """`trackside top` of a run has what its collectors know, also what the stream has discarded since, and ends."""
        collector = collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=3)
        eventually(lambda: is_read(address, "run"), what="it is read")
        collector.stop()
        nats_server.call(lambda jetstream: jetstream.purge_stream(STREAM))
        publish_job(nats_server, "run", 1, random.Random(2), windows=2)
        assert main(["top", f"{address}/run", "--json", *how]) == 0
        view = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [(row["rank"], row["state"], row["step"]) for row in view["rows"]] == [
            (0, "ended", 29),
            (1, "ended", 19),
        ]
        assert (view["lost"], view["partial"], view["has_ended"]) == (0, [], True)

    def test_begins_with_what_comes(self, nats_server, address):
        """Without models a viewer has what is published from then on, of types and by rules, and misses nothing."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(3))
            with trackside.attach(address, to=IterationEnded, keep=trackside.every(2)) as viewer:
                log_steps(bus, range(3, 8))
                bus.log(Heartbeat(sequence=0, interval_s=1.0))
                assert bus.flush(30)
                assert [event.step for event in islice(viewer, 3)] == [3, 5, 7]
                assert viewer.lost == 0

    def test_never_closed(self, nats_server, address, eventually):
        """A viewer that is dropped leaves no thread behind."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(1))
            before = set(threading.enumerate())
            viewer = trackside.attach(address)
            log_steps(bus, range(1, 2))
            assert [event.step for event in islice(viewer, 1)] == [1]
            assert set(threading.enumerate()) > before
            del viewer
            gc.collect()
            eventually(lambda: set(threading.enumerate()) <= before, what="its threads have ended")

    def test_server_restarts(self, nats_server, address, eventually):
        """A viewer says that the server does not answer, and goes on when it does, without loss or repetition."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(1))
            with trackside.attach(address, to=IterationEnded) as viewer:
                log_steps(bus, range(1, 3))
                assert [event.step for event in islice(viewer, 2)] == [1, 2]
                nats_server.stop()
                eventually(lambda: not viewer.read(0.1) and viewer.is_silent, what="it is known to be away")
                nats_server.start()
                for step in range(3, 6):
                    bus.log(IterationEnded(step=step, duration_ns=1))
                assert [event.step for event in islice(viewer, 3)] == [3, 4, 5]
                assert (viewer.is_silent, viewer.lost) == (False, 0)

    def test_gap_in_the_stream(self, nats_server, address):
        """Events that the stream no longer has when a viewer comes to it are counted as lost, with the reason."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(5))
            nats_server.call(lambda jetstream: jetstream.delete_msg(STREAM, 3))
            with trackside.attach(f"{address}/run/0?since=1", to=IterationEnded) as viewer:
                assert [event.step for event in islice(viewer, 4)] == [0, 1, 3, 4]
                assert [(gap.events, gap.reason) for gap in viewer.gaps] == [(1, "not in the stream")]

    def test_what_is_no_frame(self, nats_server, address):
        """A message that is no frame is counted, and those behind it are read."""
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(NatsSink(nats_server.url, stream=STREAM))
            log_steps(bus, range(1))
            with trackside.attach(address, to=IterationEnded) as viewer:
                nats_server.call(lambda jetstream: jetstream.publish(f"{STREAM}.run.0.other", b"no frame"))
                log_steps(bus, range(1, 2))
                assert [event.step for event in islice(viewer, 1)] == [1]
                assert viewer.malformed == 1

    @pytest.mark.parametrize("inline_bytes", [256 << 10, 0], ids=["value", "object"])
    def test_user_who_may_only_read(self, nats_addresses, eventually, monkeypatch, *, inline_bytes):
        """A user who may change nothing gets state and stream, also where the state is an object of its own."""
        monkeypatch.setattr("trackside.handlers.nats._collect._INLINE_BYTES", inline_bytes)
        with (
            collector_of(nats_addresses["collector"]) as collector,
            Bus(source=Source.detect({}, run_id="run")) as bus,
        ):
            bus.subscribe(sink_to(nats_addresses["rank"]))
            bus.log(IterationEnded(step=0, duration_ns=1))
            eventually(lambda: bus.flush(5), what="the collector created the stream")
            eventually(lambda: collector.counts["checkpoints"], what="a state is stored")
            with trackside.attach(f"{nats_addresses['viewer']}/run", models=[GoodputAccumulator()]) as viewer:
                log_steps(bus, range(1, 2))
                eventually(lambda: 1 in {event.step for event in viewer.read(1)}, what="what comes is read")
                assert [joined.complete for joined in viewer.models.values()] == [True]

    @pytest.mark.parametrize(
        ("part", "error", "line"),
        [
            ("/run", UnreadableError, "has no stream runs"),
            ("", ConfigError, "give nats://HOST:PORT/STREAM/RUN"),
            ("/run/0", ConfigError, "give nats://HOST:PORT/STREAM/RUN"),
            ("/run?since=1", ConfigError, "leave out"),
        ],
    )
    def test_models_without_a_state(self, address, part, error, line):
        """Models over a stream are those of one run; where there can be none, one line says why."""
        with pytest.raises(error, match=line):
            trackside.attach(address + part, models=[GoodputAccumulator()])

    def test_user_who_may_read_nothing(self, nats_addresses):
        """One line says what the server refuses."""
        with pytest.raises(UnreadableError, match="permissions violation"):
            collected(f"{nats_addresses['rank']}/run")

    def test_where_a_loop_runs(self, nats_server, address):
        """A notebook can attach: its own thread runs an event loop already."""
        nats_server.call(lambda jetstream: create_stream(jetstream, STREAM))

        async def cell():
            with trackside.attach(address) as viewer:
                return viewer.wait()

        assert asyncio.run(cell())

    def test_job_and_stream(self, address):
        """A viewer has endpoints of jobs or streams, not both."""
        with pytest.raises(ConfigError, match="not both"):
            trackside.attach(address, "ipc:///run/trackside/demo.0")

    def test_first_node_is_dead(self, nats_server, address, collecting, eventually):
        """Of several nodes in an address those that are tried first may be gone: another one has the state."""
        collecting()
        publish_job(nats_server, "run", 0, random.Random(1), windows=1)
        eventually(lambda: is_read(address, "run"), what="it is read")
        dead = ",".join(f"127.0.0.1:{free_port()}" for _ in range(8))
        found = collected(f"nats://{dead},{address.removeprefix('nats://')}/run")
        assert answers(found.models) == replayed(address, "run")[0]


def read_to_the_end(viewer, models, address, eventually):
    """Wait until a viewer's models have the answers of one reading of the run."""
    expected = replayed(address, "run")[0]
    eventually(lambda: not viewer.read(0.2) and answers(models) == expected, what="the viewer has all")


def log_steps(bus, steps):
    """Publish a step in a frame of its own, each."""
    for step in steps:
        bus.log(IterationEnded(step=step, duration_ns=1))
        assert bus.flush(60)


async def keep_last(jetstream, count):
    """Remove all but the last messages of the stream, as a limit would."""
    last = (await jetstream.stream_info(STREAM)).state.last_seq
    await jetstream.purge_stream(STREAM, seq=last - count + 1)


async def delete_last(jetstream):
    """Remove the last message of the stream."""
    await jetstream.delete_msg(STREAM, (await jetstream.stream_info(STREAM)).state.last_seq)


class TestCluster:
    def test_node_is_killed(self, nats_cluster, eventually):
        """
        Of three nodes that keep a stream the one that leads it is killed while eight ranks publish. All events are in
        the stream once, each run's collectors have the answers of one reading, and the node comes back.
        """
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nats_cluster)
        address = f"nats://{hosts}/{STREAM}"
        urls = [node.url for node in nats_cluster]
        with collector_of(address, replicas=3, silent_after_s=600):
            eventually(lambda: leader(nats_cluster), what="the stream has a leader")
            sinks = [NatsSink(urls[rank % 3 :] + urls[: rank % 3], stream=STREAM, timeout_s=2.0) for rank in range(8)]
            is_half_done = threading.Barrier(9)

            def publish(rank):
                source = Source.detect({}, run_id="run", rank=rank, world_size=8)
                with Bus(source=source) as bus:
                    bus.subscribe(sinks[rank])
                    for step in range(200):
                        bus.log(IterationEnded(step=step, duration_ns=1_000))
                        if step % 10 == 0:
                            eventually(lambda: bus.flush(5), what="it is acknowledged", timeout_s=120)
                        if step == 50:
                            is_half_done.wait(120)
                    eventually(lambda: bus.flush(5), what="all is acknowledged", timeout_s=120)

            ranks = [threading.Thread(target=publish, args=(rank,)) for rank in range(8)]
            for rank in ranks:
                rank.start()
            is_half_done.wait(120)
            killed = leader(nats_cluster)
            killed.stop()
            for rank in ranks:
                rank.join(240)
                assert not rank.is_alive()
            assert [sink.lost for sink in sinks] == [0] * 8
            steps = collections.defaultdict(list)
            others = [node.url for node in nats_cluster if node is not killed]
            with NatsReader(others, stream=STREAM, follow=False, to=IterationEnded) as events:
                for event in events:
                    steps[event.source.rank].append(event.step)
                assert (events.missing, events.repeated) == (0, 0)
            assert steps == {rank: list(range(200)) for rank in range(8)}
            killed.start()
            eventually(lambda: is_read(address, "run"), what="the run is read", timeout_s=120)
            assert len(collected(f"{address}/run").models[1].result().ranks) == 8


def leader(nodes):
    """Return the node that leads the stream; None while there is none."""

    async def use(jetstream):
        return (await jetstream.stream_info(STREAM)).cluster.leader

    for node in nodes:
        try:
            name = node.call(use)
        except Exception:  # this one does not know yet
            continue
        return nodes[int(name[-1])] if name else None
    return None


class TestPermissions:
    """The users of examples/deploy/nats-server.conf, as a real server lets them."""

    def test_users(self, nats_addresses, eventually):
        """Ranks publish, a collector collects, large states too, and viewers read."""
        with collector_of(nats_addresses["collector"], models=padded) as collector:
            server = nats_addresses["rank"].rpartition("/")[0]
            with Bus(source=Source.detect({}, run_id="run")) as bus:
                bus.subscribe(NatsSink(server, stream="acme"))
                for part in range(3):
                    bus.log(IterationEnded(step=part, duration_ns=1))
                    eventually(lambda: bus.flush(5), what="it is acknowledged")
                eventually(lambda: collector.counts["messages"] >= 3, what="they are collected")
            eventually(lambda: collector.counts["over"], what="the run is over, and stored")
            steps = [
                event.step for event in replay(f"{nats_addresses['viewer']}/run") if isinstance(event, IterationEnded)
            ]
            assert steps == [0, 1, 2]
            assert collector.counts["given up"] == 0


class TestTls:
    """A server with a certificate of a private authority, which asks for a user and a password."""

    @pytest.fixture
    def server(self, start_nats, tmp_path):
        """Start the server; its authority is in the file ``ca.pem``."""
        openssl(tmp_path, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
        openssl(tmp_path, "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr")
        (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names"
        openssl(tmp_path, f"{signed} -out server.pem")
        files = ("--tlscert", str(tmp_path / "server.pem"), "--tlskey", str(tmp_path / "server.key"))
        return start_nats("--tls", *files, "--user", "rank", "--pass", "secret")

    @pytest.mark.parametrize("scheme", ["nats", "tls"])
    def test_all(self, server, scheme, tmp_path, monkeypatch, eventually):
        """
        With the authority in ``SSL_CERT_FILE`` and the user in the address, a sink publishes and gets verbs, a worker
        collects and `replay` reads. A reader that is given both as arguments reads the same.
        """
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        address = f"{scheme}://rank:secret@127.0.0.1:{server.port}/{STREAM}"
        with collector_of(address) as collector:
            with Bus(source=Source.detect({}, run_id="run")) as bus:
                bus.subscribe(sink_to(address, on_verb=agree))
                bus.log(IterationEnded(step=7, duration_ns=1))
                eventually(lambda: bus.flush(5), what="it is acknowledged")
                assert command(f"{address}/run", "status", timeout_s=2.0)[0].values["by"] == "nats:rank"
            eventually(lambda: collector.counts["over"], what="the run is over, and stored")
            assert collected(f"{address}/run").models[1].result().last_step == 7
            assert [event.step for event in replay(f"{address}/run") if isinstance(event, IterationEnded)] == [7]
        monkeypatch.delenv("SSL_CERT_FILE")
        tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        options = {"tls": tls, "user": "rank", "password": "secret", "stream": STREAM, "follow": False}
        with NatsReader(f"{scheme}://127.0.0.1:{server.port}", to=IterationEnded, **options) as events:
            assert [event.step for event in events] == [7]

    @pytest.mark.parametrize(("password", "authority"), [("wrong", "ca.pem"), ("secret", "server.csr")])
    def test_refused(self, server, password, authority, tmp_path, monkeypatch):
        """
        With a wrong password, or without the authority, a sink counts what it could not publish and a reader says
        in one line, without the password, that there is no answer.
        """
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / authority))
        address = f"tls://rank:{password}@127.0.0.1:{server.port}/{STREAM}"
        sink = sink_to(address)
        with Bus(source=Source.detect({}, run_id="run")) as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=7, duration_ns=1))
            assert not bus.flush(1)
        assert sink.lost >= 2  # the step, and that the source started
        with pytest.raises(UnreadableError) as raised:
            list(replay(address))
        assert f"tls://127.0.0.1:{server.port}/{STREAM}: no answer" in str(raised.value)
        assert password not in str(raised.value)


class TestCredentials:
    """A server that knows its users by keys: by an operator's tokens, or by their public keys alone."""

    @pytest.fixture
    def connected(self, start_nats, tmp_path, monkeypatch):
        """Return a function that starts a server, has *variable* name a user's file, and returns address and key."""
        nkeys = pytest.importorskip("nkeys")
        from nats_accounts import Accounts, Key

        def start(variable):
            if variable == "NATS_CREDS":
                accounts = Accounts()
                configuration = accounts.configuration()
                text, public = accounts.credentials("rank")
            else:
                key = Key(nkeys.PREFIX_BYTE_USER)
                text, public = f"{key.seed}\n", key.public
                hears = f'["_INBOX.{public}.>", "runs-control.*.*"]'
                configuration = (
                    f"authorization {{ users: [ {{ nkey: {public}, permissions: {{ subscribe: {hears} }} }} ] }}\n"
                )
            (tmp_path / "users.conf").write_text(configuration, "utf-8")
            (tmp_path / "user").write_text(text, "utf-8")
            monkeypatch.setenv(variable, str(tmp_path / "user"))
            return f"{start_nats('-c', str(tmp_path / 'users.conf')).url}/{STREAM}", public

        return start

    @pytest.mark.parametrize("variable", ["NATS_CREDS", "NATS_NKEY"])
    def test_all(self, connected, variable, eventually):
        """
        With a user's file in ``NATS_CREDS`` or ``NATS_NKEY`` a sink publishes and gets verbs, a worker collects and
        `replay` reads. Answers go below the user's key: the server lets the user hear no others.
        """
        address, public = connected(variable)
        with collector_of(address) as collector:
            with Bus(source=Source.detect({}, run_id="run")) as bus:
                bus.subscribe(sink_to(address, on_verb=agree))
                bus.log(IterationEnded(step=7, duration_ns=1))
                eventually(lambda: bus.flush(5), what="it is acknowledged")
                assert command(f"{address}/run", "status", timeout_s=2.0)[0].values["by"] == f"nats:{public}"
            eventually(lambda: collector.counts["over"], what="the run is over, and stored")
            assert collected(f"{address}/run").models[1].result().last_step == 7
            assert [event.step for event in replay(f"{address}/run") if isinstance(event, IterationEnded)] == [7]

    def test_address_first(self, connected, tmp_path):
        """A user or a token in the address counts before the file: the server refuses it, though the file is right."""
        address, _ = connected("NATS_NKEY")
        for user in ("rank:secret", "token"):
            with pytest.raises(UnreadableError, match="no answer"):
                list(replay(address.replace("//", f"//{user}@")))

    @pytest.mark.parametrize(
        ("variable", "content", "says"),
        [
            ("NATS_CREDS", None, "give a file that can be read (No such file or directory)"),
            ("NATS_CREDS", "SU" + "A" * 56, "give a file with what `nsc generate creds` writes"),
            ("NATS_NKEY", "pa55word", "give a file with a user's seed: it begins with SU"),
            ("NATS_NKEY", "SU" + "R" * 56, "give a file with a valid seed"),
        ],
    )
    def test_bad_file(self, tmp_path, monkeypatch, variable, content, says):
        """A file that is missing, or holds no key, is one line with the variable, the path and the remedy, at once."""
        pytest.importorskip("nkeys")
        path = tmp_path / "user"
        if content is not None:
            path.write_text(content, "utf-8")
        monkeypatch.setenv(variable, str(path))
        for use in (sink_to, NatsCollector, lambda address: list(replay(address))):
            with pytest.raises(ConfigError) as raised:
                use("nats://127.0.0.1:1/acme")
            assert (raised.value.field, says in str(raised.value)) == (variable, True), str(raised.value)
            assert content is None or content not in str(raised.value)

    def test_package_missing(self, tmp_path, monkeypatch):
        """Without the package that signs, the line says what to install."""
        (tmp_path / "user").write_text("SU" + "A" * 56, "utf-8")
        monkeypatch.setenv("NATS_NKEY", str(tmp_path / "user"))
        monkeypatch.setitem(sys.modules, "nkeys", None)
        with pytest.raises(ConfigError, match=r"pip install 'nats-py\[nkeys\]'"):
            sink_to("nats://127.0.0.1:1/acme")


def agree(verb, by, is_allowed, answer):
    """Answer a verb with the name of who asks."""
    answer(Result(verb.request, "source", done=is_allowed, values={"by": by}))


def openssl(directory, arguments):
    """Run a command of OpenSSL's; skip the test where there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed here")
    subprocess.run(["openssl", *arguments.split()], cwd=directory, check=True, capture_output=True, timeout=60)


class Padding:
    """A model whose state is larger than a message."""

    def consume(self, frame):
        """Read nothing."""

    def dump(self):
        """Return it."""
        return {"padding": "x" * 1_500_000}

    def load(self, state):
        """Have it already."""


def padded(publish):
    """Return the models of a collector."""
    return [Padding()]


class TestCommand:
    def test_two_workers(self, nats_server, address, tmp_path, eventually):
        """The command with two workers collects, ends at SIGTERM, and prints its counts."""
        command = [sys.executable, "-m", "trackside", "collect", address, "--workers", "2"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout.readline() == f"ranks:   TRACKSIDE_COLLECTOR={address}\n"
            for run in ("first", "second"):
                publish_job(nats_server, run, 0, random.Random(1), windows=2)
                eventually(lambda run=run: is_read(address, run), what="it is read")
            child.send_signal(signal.SIGTERM)
            printed, _ = child.communicate(timeout=60)
            assert child.returncode == 0
            assert "checkpoints" in printed
        finally:
            child.kill()
            child.wait()

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            ((), "give where ranks connect to"),
            (("runs",), "give nats://HOST:PORT/STREAM"),
            (("nats://127.0.0.1:1/runs/run",), "its runs are divided among collectors"),
            (("nats://127.0.0.1:1/runs", "--bind", "tcp://*:7070"), "leave it out"),
            (("nats://127.0.0.1:1/runs", "--quota", "5"), "it is for ranks that connect to --bind"),
        ],
    )
    def test_refused(self, capsys, arguments, line):
        """Arguments that do not fit together are one line, with exit code 2."""
        assert main(["collect", *arguments]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert line in printed

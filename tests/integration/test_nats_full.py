"""Streams and servers that are full, and nodes that come back as they were: what is lost is counted by both sides."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time

import pytest

import trackside
from trackside.bus import Bus
from trackside.cli import main
from trackside.events import IterationEnded, Source, UnreadableError
from trackside.handlers import replay

pytest.importorskip("nats")

from nats.js.api import DiscardPolicy, StreamConfig

from nats_streams import answers, collector_of, replayed
from trackside.handlers.nats import NatsReader, NatsSink, collected
from trackside.handlers.zeromq._collector import collector_models

pytestmark = pytest.mark.integration

STREAM = "runs"


@pytest.fixture
def bus():
    with Bus(source=Source.detect({}, run_id="run", rank=0, world_size=1)) as opened:
        yield opened


class Publisher:
    """A bus with a sink for 20 kB, and what it logged."""

    def __init__(self, bus, servers):
        self.bus = bus
        self.sink = NatsSink(servers, stream=STREAM, timeout_s=1.0, buffer_bytes=20_000)
        self.subscription = bus.subscribe(self.sink)
        self.steps = 0

    def step(self, count=1):
        """Log steps."""
        for _ in range(count):
            self.bus.log(IterationEnded(step=self.steps, duration_ns=1))
            self.steps += 1

    def publish(self, count, *, eventually=None):
        """Log steps, and have each acknowledged."""
        for _ in range(count):
            self.step()
            if eventually is None:
                assert self.bus.flush(30)
            else:
                eventually(lambda: self.bus.flush(5), what="it is acknowledged", timeout_s=120)

    @property
    def stats(self):
        """The sink's counts, which balance."""
        [found] = self.bus.stats().handlers
        assert found.balance == 0
        return found


def read(server, **options):
    """Return the steps that a reader of the stream finds, and how many events it says are missing."""
    with NatsReader(server.url, stream=STREAM, follow=False, **options) as events:
        steps = [event.step for event in events if isinstance(event, IterationEnded)]
        assert events.repeated == 0
        return steps, events.missing, events.cursor


def create(server, **limits):
    """Create the stream with limits, or change those that it has."""

    async def use(jetstream):
        config = StreamConfig(name=STREAM, subjects=[f"{STREAM}.>"], **limits)
        found = [info.config.name for info in await jetstream.streams_info()]
        await (jetstream.update_stream if STREAM in found else jetstream.add_stream)(config)

    server.call(use)


@contextlib.contextmanager
def watched(servers, eventually):
    """
    Have a collector of the stream and a viewer of the run, and check at the end that both have the answers of one
    reading, and the same losses.
    """
    address = f"nats://{','.join(server.url.removeprefix('nats://') for server in servers)}/{STREAM}"
    models = collector_models(lambda event: None)

    def agree():
        with contextlib.suppress(UnreadableError):  # while a cluster elects who leads the stream or the store
            expected = replayed(address, "run")[0]
            stored = collected(f"{address}/run").models
            return not viewer.read(0.2) and answers(models) == expected == answers(stored)
        return False

    with (
        collector_of(address, silent_after_s=600, replicas=len(servers)),
        trackside.attach(f"{address}/run", models=models) as viewer,
    ):
        yield
        eventually(agree, what="collector and viewer have the answers of one reading", timeout_s=120)
        assert viewer.lost == models[0].dump()["missed"]


class TestStream:
    """A stream whose limit is reached."""

    def test_refuses_what_is_new(self, nats_server, bus, eventually):
        """
        A stream that refuses new messages costs nothing while the sink's buffer has room. What is dropped then is
        exactly what the reader misses, once there is room.
        """
        create(nats_server, max_msgs=3, discard=DiscardPolicy.NEW)
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(3)
        publisher.step(100)
        assert not bus.flush(5)
        assert publisher.stats.dropped == 0
        for _ in range(100):
            publisher.step(100)
            bus.flush(0.2)
        dropped = publisher.stats.dropped
        assert 0 < dropped < 10_000
        assert read(nats_server)[0] == [0, 1, 2]
        create(nats_server, discard=DiscardPolicy.NEW)
        eventually(lambda: bus.flush(5), what="all is acknowledged")
        publisher.publish(1)
        steps, missing, _ = read(nats_server)
        assert steps == sorted(set(steps))
        assert steps[:103] == list(range(103))
        assert missing == publisher.stats.dropped == dropped == publisher.steps - len(steps)
        assert publisher.sink.lost == 0

    def test_refuses_until_the_end(self, nats_server, bus):
        """Events that the stream has refused until the sink closes are counted as lost, and the reader has the rest."""
        create(nats_server, max_msgs=3, discard=DiscardPolicy.NEW)
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(3)
        publisher.step(40)
        bus.flush(0.2)
        assert not publisher.subscription.close(2)
        assert publisher.sink.losses() == {"not delivered before close": 40}
        assert read(nats_server)[:2] == ([0, 1, 2], 0)

    def test_discards_what_is_old(self, nats_server, bus, capsys):
        """
        Of a stream that discards its oldest messages each reader counts those that went before it came: one from the
        beginning, one that continues from a cursor, and the report.
        """
        create(nats_server, max_msgs=10, discard=DiscardPolicy.OLD)
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(5)
        steps, missing, cursor = read(nats_server)
        assert (steps, missing) == ([0, 1, 2, 3, 4], 0)
        publisher.publish(30)
        assert read(nats_server)[:2] == (list(range(25, 35)), 1 + 25)  # the first of all says who the source is
        assert read(nats_server, cursor=cursor)[:2] == (list(range(25, 35)), 20)
        assert (publisher.sink.lost, publisher.stats.dropped) == (0, 0)
        assert main(["report", f"{nats_server.url}/{STREAM}"]) == 0
        assert "26 events missing" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def follower(nats_server, eventually):
    """Start a thread that follows the stream, and return a function that returns the steps once there are so many."""
    stop = threading.Event()
    steps = []

    def follow():
        with NatsReader(nats_server.url, stream=STREAM, stop=stop, poll_interval_s=0.1, to=IterationEnded) as events:
            steps.extend(event.step for event in events)

    def read_until(count):
        eventually(lambda: len(steps) >= count, what="the follower has read it")
        return steps

    thread = threading.Thread(target=follow)
    thread.start()
    yield read_until
    stop.set()
    thread.join(30)


class TestAnotherStream:
    """A stream in the place of the one that was read."""

    @pytest.mark.parametrize("count", [3, 20])
    def test_removed(self, nats_server, bus, follower, count, eventually):
        """
        A stream that is removed is created anew by who publishes, and who follows it reads all of that one, whether it
        is shorter or longer than what was read.
        """
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(10)
        follower(10)
        nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))
        publisher.publish(count, eventually=eventually)
        assert follower(10 + count) == list(range(10 + count))
        assert read(nats_server)[:2] == (list(range(10, 10 + count)), 1 + 10)

    def test_cursor_of_the_removed(self, nats_server, bus, eventually):
        """A cursor that was saved before the stream was removed skips nothing of the new one, however long that is."""
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(3)
        cursor = read(nats_server)[2]
        nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))
        publisher.publish(20, eventually=eventually)
        assert read(nats_server, cursor=cursor)[:2] == (list(range(3, 23)), 0)

    def test_copy_of_the_removed(self, nats_server, bus, eventually):
        """A process that reads a stream like a log, again after it was removed, has all of both."""
        address = f"{nats_server.url}/{STREAM}"
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(3)
        assert [event.step for event in replay(address, to=IterationEnded)] == [0, 1, 2]
        nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))
        publisher.publish(20, eventually=eventually)
        assert [event.step for event in replay(address, to=IterationEnded)] == list(range(23))

    def test_old_disk(self, nats_server, bus, follower, eventually, tmp_path):
        """
        A server comes back with an older disk, as from a backup: who follows reads what is new, once; who begins to
        read counts what is gone; and one that saved its place in what is gone reads what is new as well.
        """
        publisher = Publisher(bus, nats_server.url)
        publisher.publish(5)
        nats_server.stop()
        shutil.copytree(tmp_path / "jetstream", tmp_path / "old")
        nats_server.start()
        publisher.publish(10, eventually=eventually)
        follower(15)
        cursor = read(nats_server)[2]
        nats_server.stop()
        shutil.rmtree(tmp_path / "jetstream")
        (tmp_path / "old").rename(tmp_path / "jetstream")
        nats_server.start()
        publisher.publish(3, eventually=eventually)
        assert follower(18) == list(range(18))
        assert read(nats_server)[:2] == ([0, 1, 2, 3, 4, 15, 16, 17], 10)
        with NatsReader(nats_server.url, stream=STREAM, cursor=cursor, follow=False, to=IterationEnded) as events:
            assert [event.step for event in events] == [15, 16, 17]
            assert (events.missing, events.repeated) == (0, 1 + 5)


@contextlib.contextmanager
def small_disk(directory):
    """Have a file system of 2 MiB at *directory*."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    directory.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory):
    """Take all room of the disk, and return the file that has it."""
    path = directory / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    return path


class TestDisk:
    """A server without room on its disk."""

    @pytest.mark.hang_guard(180)
    def test_is_full(self, start_nats, bus, tmp_path, eventually):
        """
        While the server's disk is full the job goes on. Once there is room and the server was started again, all that
        was not dropped is in the stream once, and readers, a viewer and a collector miss what the sink has counted.
        """
        with small_disk(tmp_path / "jetstream") as disk:
            server = start_nats()
            try:
                publisher = Publisher(bus, server.url)
                publisher.publish(20)
                with watched([server], eventually):
                    ballast = fill(disk)
                    began_s = time.monotonic()
                    for _ in range(100):
                        publisher.step(100)
                        bus.flush(0.1)
                    assert time.monotonic() - began_s < 60
                    dropped = publisher.stats.dropped
                    assert 0 < dropped < 10_000
                    ballast.unlink()
                    server.stop()
                    server.start()
                    eventually(lambda: bus.flush(5), what="all is acknowledged")
                    publisher.publish(1)
                    steps, missing, _ = read(server)
                    assert steps == sorted(set(steps))
                    assert missing == publisher.stats.dropped == publisher.steps - len(steps)
                    assert publisher.sink.lost == 0
            finally:
                server.stop()


@pytest.fixture
def cluster(nats_cluster, eventually):
    """Start a cluster, and create the stream on its three nodes."""
    eventually(lambda: created(nats_cluster[0]), what="the stream is created", timeout_s=60)
    return nats_cluster


def created(server):
    """Create the stream on three nodes; return whether they had found each other."""
    with contextlib.suppress(Exception):  # whatever the client raises until then
        create(server, num_replicas=3)
        return True
    return False


def leader(nodes):
    """Return the node that leads the stream; None while there is none."""

    async def use(jetstream):
        return (await jetstream.stream_info(STREAM)).cluster.leader

    for node in nodes:
        with contextlib.suppress(Exception):  # this one does not know yet
            return nodes[int(node.call(use)[-1])]
    return None


def is_current(nodes):
    """Return whether each node has all of the stream."""

    async def use(jetstream):
        found = (await jetstream.stream_info(STREAM)).cluster
        return bool(found.leader) and all(replica.current and not replica.offline for replica in found.replicas)

    for node in nodes:
        with contextlib.suppress(Exception):
            return node.call(use)
    return False


def has_all(node, steps, eventually):
    """Check that a reader gets all steps; a new leader may not know the latest ones at once."""
    eventually(lambda: len(read(node)[0]) >= steps, what="the node has all steps")
    assert read(node)[:2] == (list(range(steps)), 0)


@pytest.mark.hang_guard(300)
class TestCluster:
    """A cluster of which one node has no room, or knows less than the others."""

    def test_read(self, cluster, bus, eventually):
        """Readers get the copy of the node that leads the stream, whichever node they are connected to."""
        publisher = Publisher(bus, [node.url for node in cluster])
        publisher.publish(5, eventually=eventually)

        async def nodes_read(jetstream):
            found = await jetstream.consumers_info(STREAM)
            return [consumer.cluster.leader for consumer in found if consumer.delivered.consumer_seq]

        with contextlib.ExitStack() as open_readers:  # each removes its consumer when it closes
            for node in cluster * 2:
                list(open_readers.enter_context(NatsReader(node.url, stream=STREAM, follow=False)))
            nodes = cluster[0].call(nodes_read)
        assert nodes == [f"node-{cluster.index(leader(cluster))}"] * 6

    def test_disk_of_the_leader_is_full(self, cluster, bus, eventually, tmp_path):
        """
        The node that leads the stream runs out of disk: frames wait. It is stopped, and the others go on. It comes back
        with room, and has everything: nothing was lost.
        """
        with contextlib.ExitStack() as disks:
            for number, node in enumerate(cluster):
                node.stop()
                directory = tmp_path / f"node-{number}" / "jetstream"
                shutil.rmtree(directory)
                disks.enter_context(small_disk(directory))
                disks.callback(node.stop)
            for node in cluster:
                node.start()
            eventually(lambda: created(cluster[0]), what="the stream is created", timeout_s=60)
            publisher = Publisher(bus, [node.url for node in cluster])
            publisher.publish(20, eventually=eventually)
            disks.enter_context(watched(cluster, eventually))
            full = eventually(lambda: leader(cluster), what="the stream has a leader")
            ballast = fill(tmp_path / f"node-{cluster.index(full)}" / "jetstream")
            while bus.flush(1):
                publisher.step()
            full.stop()
            publisher.publish(100, eventually=eventually)
            ballast.unlink()
            full.start()
            eventually(lambda: is_current(cluster), what="each node has all", timeout_s=120)
            has_all(full, publisher.steps, eventually)
            assert (publisher.sink.lost, publisher.stats.dropped) == (0, 0)

    def test_node_with_an_old_disk(self, cluster, bus, eventually, tmp_path):
        """
        A node comes back with the disk that it had before the last 100 steps, and then another one dies: nothing that
        was acknowledged is lost, nothing is there twice, and each node that runs says so.
        """
        publisher = Publisher(bus, [node.url for node in cluster])
        publisher.publish(20, eventually=eventually)
        old, dying = cluster[0], cluster[1]
        with watched(cluster, eventually):
            old.stop()
            shutil.copytree(tmp_path / "node-0" / "jetstream", tmp_path / "old")
            old.start()
            publisher.publish(100, eventually=eventually)
            old.stop()
            shutil.rmtree(tmp_path / "node-0" / "jetstream")
            shutil.copytree(tmp_path / "old", tmp_path / "node-0" / "jetstream")
            old.start()
            eventually(lambda: is_current(cluster), what="each node has all", timeout_s=120)
            dying.stop()
            publisher.publish(20, eventually=eventually)
            has_all(old, 140, eventually)
            has_all(cluster[2], 140, eventually)
            assert (publisher.sink.lost, publisher.stats.dropped) == (0, 0)

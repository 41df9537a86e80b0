"""The frames of a collector, as any ``zmq.SUB`` reads them: without a protocol, an acknowledgement or trackside."""

from __future__ import annotations

import contextlib
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from scripts import load
from trackside.events import ConfigError
from trackside.handlers import replay
from trackside.handlers.zeromq import Collector, new_keys
from trackside.handlers.zeromq._connection import Connection
from trackside.handlers.zeromq._session import Sent
from trackside.wire import wire_name_of

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[3]
(SECTION,) = re.findall(
    r"^## Without trackside\n(.*?)^## ", (ROOT / "docs" / "watching.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
(COMMAND,) = re.findall(r"^\$ trackside (.*)$", SECTION, re.MULTILINE)
STEP = "test.step.taken"
DEADLINE_MS = 60_000


@pytest.fixture(scope="module")
def reader():
    """Give the example that reads without trackside, as a module."""
    return load(ROOT / "examples" / "read_log.py")


@pytest.fixture
def subscribed():
    """Give a function that connects a plain ``zmq.SUB``, with the key of a role if one is given."""
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())

        def connect(endpoint, topic="", keys=None, role="viewer"):
            sub = stack.enter_context(context.socket(zmq.SUB))
            sub.linger, sub.rcvtimeo = 0, DEADLINE_MS
            if keys is not None:
                sub.curve_serverkey = (keys / "server.1.public").read_bytes().strip()
                sub.curve_publickey = (keys / f"{role}.1.public").read_bytes().strip()
                sub.curve_secretkey = (keys / f"{role}.1.secret").read_bytes().strip()
            sub.connect(endpoint)
            sub.subscribe(topic)
            return sub

        yield connect


@pytest.fixture
def sent(jobs):
    """Give a function that starts a job that sends to a collector, with a rank."""
    return lambda collector, rank=0, **options: jobs(
        publish=False, models=False, collector=collector.endpoint, insecure="keys" not in options, rank=rank, **options
    )


def log_until_it_comes(job, sub):
    """Have *job* log until *sub*, whose subscription is in transit, gets a frame."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while not sub.poll(100):
        assert time.monotonic() < deadline_s, "no frame came"
        job.log(count=1)


class TestBroadcast:
    def test_every_event_is_read(self, collectors, sent, subscribed, reader, tmp_path):
        """
        From its first frame on, a reader without trackside gets the content of the log, event by event and in order.
        """
        collector = collectors(log=tmp_path, broadcast="tcp://127.0.0.1:*")
        sub = subscribed(collector.broadcast_endpoint, "test/3/")
        job = sent(collector, 3)
        log_until_it_comes(job, sub)
        job.log(count=500)
        job.end()
        job.close(timeout_s=60)
        job.leave()
        events = []
        while not events or events[-1]["type"] != "trackside.source.ended":
            topic, frame = sub.recv_multipart()
            assert topic == b"test/3/"
            events += reader.read_frame(frame)[3]
        assert collector.end()

        logged = {event.seq: event for event in replay(tmp_path) if event.source.role == "main"}
        assert [event["seq"] for event in events] == list(range(events[0]["seq"], len(logged)))
        assert sum(event["type"] == STEP for event in events) >= 500
        for event in events:
            kept = logged[event["seq"]]
            assert (event["type"], event["time_ns"], event["step"]) == (wire_name_of(kept), kept.at_ns, kept.step)

    def test_topic(self, collectors, sent, subscribed, reader):
        """A reader that asks for rank 1 gets that rank's frames alone, and not those of rank 10."""
        collector = collectors(broadcast="tcp://127.0.0.1:*")
        sub, all_of_them = (subscribed(collector.broadcast_endpoint, topic) for topic in ("test/1/", ""))
        ten = sent(collector, 10)
        log_until_it_comes(ten, all_of_them)
        one = sent(collector, 1)
        log_until_it_comes(one, sub)
        ten.log(count=5)
        one.log(count=5)
        one.end()
        one.close(timeout_s=60)
        one.leave()
        topics, last = set(), ""
        while last != "trackside.source.ended":
            topic, frame = sub.recv_multipart()
            topics.add(topic)
            last = reader.read_frame(frame)[3][-1]["type"]
        assert topics == {b"test/1/"}

    def test_reader_that_stops(self, subscribed, until):
        """For a reader that does not read, no frame waits: those beyond its queue are missing, the others in order."""
        connection = Connection("tcp://127.0.0.1:*", binds=True, broadcasts=True, insecure=True)
        try:
            sub = subscribed(connection.endpoint)
            until(lambda: connection.send(b"t", [b"first"]) is Sent.QUEUED and sub.poll(50))
            numbers = range(4000)
            padding = bytes(32_000)
            assert {connection.send(b"t", [b"%d " % number + padding]) for number in numbers} == {Sent.QUEUED}
            came = []
            while sub.poll(1000):
                _, frame = sub.recv_multipart()
                if frame != b"first":
                    came.append(int(frame.split()[0]))
            assert came == sorted(set(came))
            assert 1000 < len(came) < 4000
        finally:
            connection.close()


class TestTopics:
    """The bound on what readers subscribe to."""

    @pytest.fixture
    def bound(self):
        """Give a socket that broadcasts."""
        connection = Connection("tcp://127.0.0.1:*", binds=True, broadcasts=True, insecure=True)
        yield connection
        connection.close()

    @pytest.fixture
    def readers(self, bound):
        """Give a function that connects a reader from an address of this machine, and one that serves until a check."""
        port = bound.endpoint.rpartition(":")[2]
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(zmq.Context())

            def connect(address):
                sub, monitor = (stack.enter_context(context.socket(kind)) for kind in (zmq.SUB, zmq.PAIR))
                sub.linger = sub.sndhwm = 0
                sub.reconnect_ivl = -1
                sub.monitor(f"inproc://{address}", zmq.EVENT_DISCONNECTED)
                stack.callback(sub.monitor, None, 0)
                monitor.connect(f"inproc://{address}")
                sub.connect(f"tcp://{address}:0;127.0.0.1:{port}")
                return sub, lambda: bool(monitor.poll(0))

            yield connect

    @pytest.mark.parametrize(
        ("topics", "is_kept"),
        [
            ([b"%d" % number for number in range(1000)], True),
            ([b"%d" % number for number in range(1100)], False),
            ([b"same"] * 1100, False),
            ([b"%d" % number + bytes(900) for number in range(100)], False),
            ([bytes(1100)], False),
        ],
        ids=["a thousand", "too many", "too often", "too much", "too long"],
    )
    def test_of_an_address(self, bound, readers, until, topics, is_kept):
        """A reader may subscribe to a thousand short topics or 64 KiB of them; beyond that its address is cut off."""

        def is_sent(reader, topic):
            bound.wait(0.01)
            bound.send(topic, [b""])
            return any(reader.recv() == topic for _ in range(1000) if reader.poll(0))

        other, other_is_cut = readers("127.0.0.1")
        sub, is_cut = readers("127.0.0.2")
        for reader in (other, sub):
            reader.subscribe(b"first")
            until(lambda reader=reader: is_sent(reader, b"first"))  # what is subscribed to earlier is sent once
        for topic in [*topics, b"last"]:
            sub.subscribe(topic)
        until(lambda: is_cut() or is_sent(sub, b"last"))
        assert (is_cut(), other_is_cut(), is_sent(other, b"first")) == (not is_kept, False, True)


class TestSafety:
    def test_tcp_needs_keys(self, socket_directory):
        """Without keys a port is bound only if the caller asks for an insecure one, as everywhere."""
        with pytest.raises(ConfigError, match="give keys"):
            Collector(f"ipc://{socket_directory}/ranks", broadcast="tcp://127.0.0.1:*")

    def test_keys(self, collectors, sent, subscribed, tmp_path):
        """With the key of a viewer the frames arrive."""
        keys = tmp_path / "keys"
        new_keys(keys)
        collector = collectors(keys=keys, broadcast="tcp://127.0.0.1:*")
        sub = subscribed(collector.broadcast_endpoint, keys=keys)
        log_until_it_comes(sent(collector, keys=str(keys)), sub)
        topic, _ = sub.recv_multipart()
        assert topic == b"test/0/"

    @pytest.mark.parametrize("role", ["rank", None])
    def test_refused(self, role, collectors, tmp_path):
        """A reader with the key of a rank, or with a key on no list, is refused before there is a connection."""
        keys = tmp_path / "keys"
        new_keys(keys)
        collector = collectors(keys=keys, broadcast="tcp://127.0.0.1:*")
        with zmq.Context() as context, context.socket(zmq.PAIR) as monitor, context.socket(zmq.SUB) as sub:
            sub.monitor("inproc://seen", zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            monitor.connect("inproc://seen")
            sub.linger, monitor.rcvtimeo = 0, DEADLINE_MS
            sub.curve_serverkey = (keys / "server.1.public").read_bytes().strip()
            if role is not None:
                sub.curve_secretkey = (keys / f"{role}.1.secret").read_bytes().strip()
                sub.curve_publickey = (keys / f"{role}.1.public").read_bytes().strip()
            else:
                sub.curve_publickey, sub.curve_secretkey = zmq.curve_keypair()
            sub.connect(collector.broadcast_endpoint)
            sub.subscribe("")
            what = int.from_bytes(monitor.recv_multipart()[0][:2], sys.byteorder)
            sub.monitor(None, 0)
        assert what == zmq.EVENT_HANDSHAKE_FAILED_AUTH


class TestPage:
    def test_reader(self, command_line, jobs):
        """The reader on the page prints the events of a job, with their fields, from the collector on the page."""
        arguments = [re.sub(r"\*:70\d\d$", "127.0.0.1:*", part) for part in shlex.split(COMMAND)]
        served = command_line(*arguments).stdout
        ranks, pub = served.readline().partition("=")[2].strip(), served.readline().split()[-1]
        program = PROGRAM.replace("tcp://head:7072", pub).replace("demo/", "test/")
        assert program.count(pub) == program.count("test/") == 1
        with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True) as process:
            try:
                job = jobs(publish=False, models=False, collector=ranks, insecure=True)
                line = ""
                while STEP not in line:
                    if select.select([process.stdout], [], [], 0.1)[0]:
                        line = process.stdout.readline()
                        assert line
                    else:
                        job.log(count=1)
            finally:
                process.kill()
        assert re.fullmatch(r"test/0/ \d+ test\.step\.taken step (\d+) \{'number': \1, 'text': ''\}\n", line)

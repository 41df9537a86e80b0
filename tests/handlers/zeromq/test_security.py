from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trackside.events import ConfigError, UnreadableError
from trackside.handlers.zeromq import Filter, attach, new_keys
from trackside.handlers.zeromq._connection import Connection, Safety, check_endpoint
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    SOURCE_END,
    FrameEntry,
    Hello,
    Snapshot,
    decode,
    encode,
    encode_snapshot,
)
from trackside.handlers.zeromq._receiver import StreamConsumer
from trackside.handlers.zeromq._server import ReadySnapshot, StreamServer

STEP = "test.step.taken"


def only(keys, target, *names):
    """Return a directory with some of the *keys*."""
    target.mkdir(mode=0o700)
    for name in names:
        shutil.copy2(keys / name, target)
    return target


class Stranger:
    """A peer that greets a collector as a rank does, over its own connection."""

    def __init__(self, endpoint, **options):
        self.connection = Connection(endpoint, binds=False, role="rank", **options)
        self.answers = []

    def greet(self, seconds):
        """Say hello again and again; keep the answers."""
        hello = encode(Hello(PROTOCOL_VERSION, SOURCE_END, secrets.token_hex(8), ""))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.answers:
            self.connection.send(b"", hello)
            self.connection.wait(0.1)
            self.answers += [decode(parts) for _, parts, _ in self.connection.receive(100)]
        return [type(answer).__name__ for answer in self.answers]


@pytest.fixture
def strangers():
    """Give a function that makes such peers; their connections are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(endpoint, **options):
            stranger = Stranger(endpoint, **options)
            stack.callback(stranger.connection.close)
            return stranger

        yield make


class TestEndpoints:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "*", "[::1]"])
    def test_tcp_needs_keys(self, host):
        """TCP, loopback included, is refused without keys; with keys, or with ``insecure``, it is not."""
        endpoint = f"tcp://{host}:7070"
        with pytest.raises(ConfigError, match="give keys"):
            check_endpoint(endpoint, binds=True)

        assert check_endpoint(endpoint, binds=True, has_keys=True) is Safety.KEYED
        assert check_endpoint(endpoint, binds=True, insecure=True) is Safety.INSECURE

    def test_directory_is_made_for_this_user(self, tmp_path):
        """
        The directory of a socket is made so that no other user can reach it.
        """
        assert check_endpoint(f"ipc://{tmp_path}/new/job", binds=True) is Safety.PRIVATE
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700

    def test_private_directory_stays_private(self, tmp_path):
        """``insecure`` changes nothing about a socket that is safe; it allows one that is not."""
        tmp_path.chmod(0o700)
        assert check_endpoint(f"ipc://{tmp_path}/job", binds=True, insecure=True) is Safety.PRIVATE

        tmp_path.chmod(0o755)
        assert check_endpoint(f"ipc://{tmp_path}/job", binds=True, insecure=True) is Safety.INSECURE

    def test_directory_open_to_others(self, tmp_path):
        """
        A directory that others can enter is refused, for binding and for connecting.
        """
        tmp_path.chmod(0o755)
        for binds in (True, False):
            with pytest.raises(ConfigError, match="chmod 700"):
                check_endpoint(f"ipc://{tmp_path}/job", binds=binds)

    @pytest.mark.parametrize(
        "endpoint",
        [
            "udp://127.0.0.1:7070",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:0",
            "tcp://127.0.0.1:99999",
            "tcp://a b:7070",
            "ipc://relative/path",
            "ipc:///",
            "/tmp/x",
            "",
        ],
    )
    def test_malformed(self, endpoint):
        """A text that is no endpoint is refused, keys or not."""
        with pytest.raises(ConfigError):
            check_endpoint(endpoint, has_keys=True, binds=True)

    def test_abstract_name_has_no_permissions(self):
        """
        A socket without a file is open to everybody on the machine, so it needs keys too.
        """
        with pytest.raises(ConfigError, match="give keys"):
            check_endpoint("ipc://@job", binds=True)

    def test_long_path(self, tmp_path):
        """A path that is too long for a socket is refused, with its excess length."""
        with pytest.raises(ConfigError, match="107"):
            check_endpoint(f"ipc://{tmp_path}/{'x' * 100}", binds=True)


@pytest.mark.integration
class TestListeners:
    def test_trained_process_only_connects(self, jobs, collectors, until, keys):
        """
        A job that sends to a collector listens on no TCP port.
        """
        collector = collectors(keys=keys)
        job = jobs(publish=True, collector=collector.endpoint, keys=str(keys))
        job.log(count=1)
        until(lambda: collector.heard(STEP))

        assert _listening(job.pid) == []
        assert len(_listening(os.getpid())) >= 1  # so the test can see the listening sockets there are


def _listening(pid):
    """Return the TCP sockets on which process *pid* listens, as Linux lists them."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(descriptor.readlink()))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in held]


@pytest.mark.integration
class TestAllowList:
    def test_right_key(self, collectors, strangers, keys):
        """
        A peer with an accepted key that knows the server's is answered.
        """
        collector = collectors(keys=keys)

        assert strangers(collector.endpoint, keys=keys).greet(60)[0] == "Welcome"

    def test_others_are_not_heard(self, collectors, strangers, keys, tmp_path):
        """Messages of peers without a key, with an unknown key, or with another server's key do not arrive."""
        collector = collectors(keys=keys)
        new_keys(tmp_path / "other")
        names = "rank.1.secret", "rank.1.public"
        unknown = only(tmp_path / "other", tmp_path / "unknown", *names)
        shutil.copy2(keys / "server.1.public", unknown)
        misled = only(keys, tmp_path / "misled", *names)
        shutil.copy2(tmp_path / "other" / "server.1.public", misled)

        heard = [
            strangers(collector.endpoint, **options).greet(1.0)
            for options in ({"insecure": True}, {"keys": unknown}, {"keys": misled})
        ]

        assert heard == [[], [], []]
        assert collector.receiver.producers == {}
        assert collector._receiving._authenticator.refused >= 1

    @pytest.mark.parametrize("role", ["viewer", "control"])
    def test_who_watches_may_not_send(self, collectors, strangers, keys, tmp_path, role):
        """
        A key for watching or commanding does not let its owner send events.
        """
        collector = collectors(keys=keys)
        own = only(keys, tmp_path / "own", "server.1.public")
        for kind in ("secret", "public"):
            shutil.copy2(keys / f"{role}.1.{kind}", own / f"rank.1.{kind}")

        assert strangers(collector.endpoint, keys=own).greet(60) == ["Refused"]

    def test_rank_may_not_watch(self, collectors, keys, tmp_path):
        """A rank's key does not let its owner read the others' events."""
        collector = collectors(keys=keys, publish="tcp://127.0.0.1:*")
        own = only(keys, tmp_path / "own", "server.1.public")
        for kind in ("secret", "public"):
            shutil.copy2(keys / f"rank.1.{kind}", own / f"viewer.1.{kind}")

        refused = pytest.raises(UnreadableError, match="a rank key may not watch")
        with attach(collector.viewer_endpoint, keys=own) as attachment, refused:
            attachment.wait(10)
        assert collector.totals()["viewers"] == 0

    def test_rotation(self, collectors, strangers, keys, tmp_path, until):
        """
        While a key is replaced both are let in; after the next replacement the first is not, without a restart.
        """
        collector = collectors(keys=keys)
        first = only(keys, tmp_path / "first", "rank.1.secret", "rank.1.public", "server.1.public")
        new_keys(keys, ["rank"])
        assert strangers(collector.endpoint, keys=first).greet(60)[0] == "Welcome"
        assert strangers(collector.endpoint, keys=keys).greet(60)[0] == "Welcome"

        new_keys(keys, ["rank"])

        until(lambda: strangers(collector.endpoint, keys=first).greet(1.0) == [])
        assert strangers(collector.endpoint, keys=keys).greet(60)[0] == "Welcome"


@pytest.mark.integration
class TestSecrets:
    def test_shown_nowhere(self, command_line, jobs, keys, tmp_path):
        """No secret is in any text that a collector, a job or a command prints, logs, or shows in /proc."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        collector = command_line(
            *("collect", "--bind", f"tcp://127.0.0.1:{port}", "--log", tmp_path / "log", "--keys", keys)
        )
        greeting = collector.stdout.readline()
        job = jobs(publish=False, collector=f"tcp://127.0.0.1:{port}", keys=str(keys))
        job.log(count=100)
        job.end()
        shown = [
            Path(f"/proc/{pid}/{name}").read_bytes()
            for pid in (collector.pid, job.pid)
            for name in ("cmdline", "environ")
        ]
        job.close(timeout_s=60)
        collector.send_signal(signal.SIGTERM)
        shown += [text.encode() for text in (greeting, *collector.communicate(timeout=100))]
        shown += [path.read_bytes() for path in tmp_path.rglob("*.tslog")]
        (keys / "rank.1.secret").chmod(0o644)
        refused = command_line("forward", "--bind", "tcp://127.0.0.1:*", "--to", "tcp://127.0.0.1:1", "--keys", keys)
        shown += [text.encode() for text in refused.communicate(timeout=100)]
        assert b"others can read this secret" in shown[-1]
        assert any(b"test.step.taken" in text for text in shown)

        held = [path.read_bytes().strip() for path in keys.glob("*.secret")]
        assert [secret in text for secret in held for text in shown] == [False] * len(held) * len(shown)


def _zmtp(*, more):
    """
    Return the first bytes of a ZMTP 3.0 peer without any security, and one frame of a message, with *more* to come.
    """
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + b"\0" + bytes(31)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)
    command = b"\x04" + bytes([len(ready)]) + ready
    body = bytes(1 << 19)
    return greeting, command, bytes([3 if more else 2]) + struct.pack(">Q", len(body)) + body


class Supplies:
    """A provider without streams."""

    def open_stream(self, wanted, ring):
        """Begin a stream."""
        self.ring = ring
        return lambda: None

    def take_snapshot(self, models, ring, done):
        """Have none."""
        done(None)

    def status(self):
        """Have no status."""
        return {}


@pytest.mark.integration
class TestHostilePeers:
    """Each test attacks a collector that then receives a job's events undisturbed."""

    @pytest.fixture
    def attacked(self, collectors, jobs, until):
        """Give a collector; after the attack a job's events must arrive."""
        collector = collectors(silent_after_s=1e6)
        yield collector
        jobs(publish=False, collector=collector.endpoint, insecure=True, models=False).log(count=100)
        until(lambda: len(collector.heard(STEP)) == 100)

    def port(self, collector):
        """Return the collector's port."""
        return int(collector.endpoint.rpartition(":")[2])

    def test_half_open_connections(self, attacked, scaled):
        """Peers that connect and send nothing are dropped after three seconds."""
        held = [socket.create_connection(("127.0.0.1", self.port(attacked))) for _ in range(scaled(1000))]
        for peer in held:
            peer.settimeout(60)
        start = time.monotonic()

        for peer in held:
            with contextlib.suppress(ConnectionError):
                while peer.recv(4096):
                    pass
            peer.close()

        assert time.monotonic() - start < 60

    def test_random_bytes(self, attacked, seed, scaled):
        """
        Peers that send noise are dropped.
        """
        rng = random.Random(seed)
        for _ in range(scaled(200)):
            with socket.create_connection(("127.0.0.1", self.port(attacked))) as peer, contextlib.suppress(OSError):
                peer.sendall(rng.randbytes(rng.randrange(1, 5000)))

        assert attacked.totals()["peers"] == 0

    def test_message_without_an_end_to_a_keyed_port(self, collectors, keys):
        """
        A peer without a key cannot fill the memory: a message of many parts does not get past the handshake.
        """
        collector = collectors(keys=keys)
        greeting, command, part = _zmtp(more=True)
        before = _resident()
        sent = 0
        with socket.create_connection(("127.0.0.1", self.port(collector))) as peer, contextlib.suppress(OSError):
            peer.settimeout(1.0)
            peer.sendall(greeting + command)
            for _ in range(100):
                peer.sendall(part)
                sent += len(part)

        assert _resident() - before < 16 << 20, sent

    def test_oversized_message(self, attacked, until):
        """A message that claims to be larger than a megabyte disconnects its sender, and no part of it is read."""
        greeting, command, _ = _zmtp(more=False)
        with socket.create_connection(("127.0.0.1", self.port(attacked))) as peer:
            peer.settimeout(60)
            peer.sendall(greeting + command)
            while b"READY" not in peer.recv(4096):  # bytes sent before that are not received
                pass
            peer.sendall(b"\x00\x01x")
            until(lambda: attacked.totals()["malformed"] == 1)
            peer.sendall(b"\x02" + struct.pack(">Q", (1 << 20) + 1))
            with contextlib.suppress(ConnectionError):
                while peer.recv(4096):
                    pass

        assert attacked.totals()["malformed"] == 1

    def test_many_parts_and_huge_names(self, attacked, strangers, until):
        """
        Messages of many parts, of long topics, or that are no messages are counted and change nothing.
        """
        stranger = strangers(attacked.endpoint, insecure=True)
        stranger.connection.send(b"", [b"x"] * 1000)
        stranger.connection.send(b"", [b"\xdb\x00\x0f\xff\xf0" + b"t" * 0xFFFF0])
        stranger.connection.send(b"", [b"\x93\x0d" + b"\x91" * 900])

        until(lambda: attacked.totals()["malformed"] == 3)

    def test_frames_that_are_none(self, attacked, until):
        """A rank that sends rubbish as frames stays connected, and the rubbish is counted."""
        connection = Connection(attacked.endpoint, binds=False, role="rank", insecure=True)
        provider = Supplies()
        server = StreamServer(provider, connection.send, own_id="rubbish", connects=True)
        server.hold(Filter())
        provider.ring.append(b"\xff" * 1000, 1)
        provider.take_snapshot = lambda models, ring, done: done(_no_snapshot(ring))
        try:
            deadline = time.monotonic() + 10
            while not attacked.totals()["malformed"] and time.monotonic() < deadline:
                server.pump()
                connection.wait(0.05)
                for address, parts, user in connection.receive(100):
                    server.receive(address, parts, time.monotonic(), 0, user)
                server.tick(time.monotonic())
        finally:
            connection.close()

        assert attacked.totals()["malformed"] == 1


def _no_snapshot(ring):
    return ReadySnapshot(encode_snapshot(Snapshot([], {}, 0)), ring.next_index, ring.before)


def _resident():
    """Return the memory in use, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class TestFloods:
    def test_flooded_and_left(self):
        """
        A peer that fills the queue and resets its connection does not bring the process down, inside libzmq.
        """
        script = Path(__file__).parent / "scripts" / "flooded.py"

        ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)

        assert (ended.returncode, ended.stdout) == (0, "survived\n"), ended.stderr

    def test_what_is_held_out_of_order_is_bounded(self):
        """A peer that never sends the entry that is due cannot have more kept than a window."""
        feed = StreamConsumer(lambda message: None, lambda entry: None, lambda data: None)
        feed.stream, feed.is_subscribed = "s", True

        for index in range(1, 3000):
            feed.on(FrameEntry("s", index, index, 1, b""), 64 << 10, 0.0)

        assert feed._held_bytes <= 4 << 20

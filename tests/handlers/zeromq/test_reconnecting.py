"""Reconnection after any fault, and deliveries that count only when they were acknowledged."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading

import pytest

import trackside
from trackside.events import EventsLost
from trackside.handlers.zeromq import Filter, _connection
from trackside.handlers.zeromq._server import Ring, RingBudget, Stream

STEP = "test.step.taken"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Let connections be renewed after one second of silence."""
    monkeypatch.setattr(_connection, "RENEW_AFTER_S", 1.0)


@pytest.fixture
def web_server(free_port):
    """
    Give an endpoint at which a server answers as a load balancer whose backend is away, and a function that ends it.
    """
    listener = socket.create_server(("127.0.0.1", free_port))
    met = threading.Event()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                    met.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def leave():
        assert met.wait(20)
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()

    yield f"tcp://127.0.0.1:{free_port}", leave
    with contextlib.suppress(OSError):
        listener.close()


class TestKeyedConnection:
    @pytest.mark.hang_guard(60)
    def test_that_met_a_web_server(self, here, collectors, until, keys, web_server):
        """
        A rank whose connection met an HTTP server in its collector's place comes back, and sends everything.
        """
        endpoint, leave = web_server
        job = here(publish=False, collector=endpoint, keys=keys)
        job.log(count=100)
        leave()
        collector = collectors(bind=endpoint, keys=keys)

        until(lambda: len(collector.heard(STEP)) == 100)
        assert job.remote.close(5.0)

    @pytest.mark.hang_guard(60)
    def test_whose_key_was_refused(self, here, collectors, until, keys, tmp_path):
        """
        A rank whose key is put on the list after it was refused comes back, and sends everything.
        """
        allowed = tmp_path / "allowed"
        shutil.copytree(keys, allowed)
        (allowed / "rank.1.public").unlink()
        collector = collectors(keys=allowed)
        job = here(publish=False, collector=collector.endpoint, keys=keys)
        job.log(count=100)
        until(lambda: collector.server._receiving._authenticator.refused)
        shutil.copy(keys / "rank.1.public", allowed)

        until(lambda: len(collector.heard(STEP)) == 100)
        assert collector.totals()["lost"] == 0

    @pytest.mark.hang_guard(60)
    def test_says_so_once(self, here, until, caplog, free_port):
        """
        A collector that is not there is reported in one line, however often the connection is made anew.
        """
        job = here(publish=False, collector=f"tcp://127.0.0.1:{free_port}", insecure=True)
        connection = job.remote._publishers[0]._connection
        first = connection._socket
        until(lambda: connection._socket is not first)
        second = connection._socket
        until(lambda: connection._socket is not second)

        lines = [record.message for record in caplog.records if "nothing has been heard from" in record.message]
        assert len(lines) == 1
        assert f"tcp://127.0.0.1:{free_port}" in lines[0]


class TestComplaints:
    @pytest.fixture
    def connection(self, tmp_path, keys):
        """Give a keyed connection to a collector that is not there."""
        found = _connection.Connection("tcp://127.0.0.1:1", binds=False, role="rank", keys=keys)
        yield found
        found.close()

    def test_key_is_missing(self, connection, keys, caplog):
        """While its own key is missing, a connection reports that once a minute, however often it is tried."""
        (keys / "rank.1.secret").unlink()
        for half_seconds in range(400):
            assert not connection.renew(1e9 + half_seconds / 2)

        lines = [record.message for record in caplog.records if "cannot be connected to anew" in record.message]
        assert len(lines) == 1
        assert connection._silence.attempts > 4

    def test_silent_again_and_again(self, connection, caplog):
        """The same holds where the other end falls silent and answers, again and again."""
        for half_seconds in range(400):
            connection.renew(1e9 + half_seconds / 2)
            if half_seconds % 10 == 9:
                connection._silence.end()

        assert len([record for record in caplog.records if "nothing has been heard" in record.message]) == 1


class TestDelivery:
    @pytest.mark.hang_guard(60)
    def test_to_a_collector_that_never_was(self, here, free_port):
        """Events for a collector that never answered are lost: `close` is False, and the count is exact."""
        job = here(publish=False, collector=f"tcp://127.0.0.1:{free_port}", insecure=True)
        job.log(count=2000)
        assert not job.remote.is_watched
        job.bus.end("closed")
        job.bus.flush(5.0)
        published = job.bus.stats().published

        assert not job.remote.close(0.2)
        (stream,) = [handler for handler in job.bus.stats().handlers if handler.name.endswith("CollectorStream")]
        assert (stream.lost, stream.logged >= 2000) == (published, True)

    @pytest.mark.hang_guard(60)
    def test_acknowledged(self, here, collectors):
        """Events that a collector has acknowledged are not lost, and `close` is True."""
        collector = collectors()
        job = here(publish=False, collector=collector.endpoint, insecure=True)
        job.log(count=2000)
        job.bus.end("closed")
        job.bus.flush(5.0)

        assert job.remote.close(20.0)
        (stream,) = [handler for handler in job.bus.stats().handlers if handler.name.endswith("CollectorStream")]
        assert stream.lost == 0
        assert len(collector.heard(STEP)) == 2000
        assert collector.heard(EventsLost) == []

    @pytest.mark.hang_guard(60)
    def test_forwarder_counts_what_was_acknowledged(self, here, forwarders, until, free_port):
        """A forwarder whose collector never answered has delivered nothing, whatever it received."""
        forwarder = forwarders(f"tcp://127.0.0.1:{free_port}")
        job = here(publish=False, collector=forwarder.endpoint, insecure=True)
        job.log(count=500)
        until(lambda: forwarder.streams.counts["events"] >= 500)

        assert (forwarder.delivered, forwarder.undelivered >= 500) == (0, True)


class TestStream:
    """The delivery count of a stream, entry by entry: ten entries of ten events each."""

    @pytest.fixture
    def stream(self):
        """Give a stream with a ring that holds ten entries of ten events."""
        ring = Ring(RingBudget(), "ring")
        for _ in range(10):
            ring.append(b"frame", 10)
        return Stream(Filter(), ring, lambda: None)

    def test_acknowledged_twice(self, stream):
        """An acknowledgement that comes again, or late, counts nothing twice."""
        for before in (30, 30, 20, 40):
            stream.acknowledge(before)
        assert (stream.delivered, stream.undelivered, stream.lost) == (40, 60, 0)

    def test_passed_over(self, stream):
        """Entries that a viewer had to skip are not delivered by an acknowledgement of later ones."""
        stream.acknowledge(10)
        stream.give_up(30, 60)
        stream.give_up(30, 70)
        stream.acknowledge(30)
        assert stream.delivered == 30
        stream.acknowledge(80)
        assert (stream.delivered, stream.undelivered, stream.lost) == (40, 60, 40)

    def test_passed_over_by_another(self, stream):
        """Events that one viewer passed over are delivered, not lost, once another that goes on before it has them."""
        stream.give_up(0, 40)
        stream.resume(0)
        stream.acknowledge(100)
        assert (stream.delivered, stream.undelivered, stream.lost) == (100, 0, 0)

    def test_gone_from_the_ring(self):
        """Entries that the ring dropped before any acknowledgement are lost at once."""
        ring = Ring(RingBudget(most_bytes=1500), "ring")
        stream = Stream(Filter(), ring, lambda: None)
        for _ in range(10):
            ring.append(bytes(100), 10)
        kept = 100 - ring.position(0)[1]
        assert 0 < kept < 100
        assert (stream.lost, stream.undelivered) == (100 - kept, 100)


class TestJob:
    @pytest.mark.hang_guard(60)
    def test_reports_what_its_collector_lacks(self, tmp_path, free_port, capsys):
        """
        A job whose collector never answered ends with `close` False, and its summary names the loss.
        """
        bus = trackside.Bus()
        collector = f"tcp://127.0.0.1:{free_port}"
        job = trackside.start(
            tmp_path, remote=trackside.Remote(collector=collector, insecure=True), report=True, bus=bus
        )
        bus.log(Note())

        assert not job.close(timeout_s=1.0)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  lost")]
        assert "CollectorStream" in line


@trackside.event("test.reconnecting.note")
class Note(trackside.Event):
    """An event to deliver."""

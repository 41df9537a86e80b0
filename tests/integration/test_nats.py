"""The event stream in NATS JetStream, against the real server."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.request

import pytest

import trackside
from ports import free_port
from trackside.bus import Bus
from trackside.cli import main
from trackside.events import (
    IterationEnded,
    ProgramEnded,
    SectionWindow,
    Source,
    SourceStarted,
    UnreadableError,
    set_process_source,
)
from trackside.handlers import follow, replay
from trackside.handlers.eventlog import EventLog
from trackside.job import Remote

nats = pytest.importorskip("nats")

from trackside.handlers.nats import NatsReader, NatsSink, collected, copied  # noqa: E402  it imports the library
from trackside.handlers.nats._stream import StreamPull  # noqa: E402  so does this

pytestmark = pytest.mark.integration


STREAM = "runs"


@pytest.fixture
def bus():
    found = Bus()
    yield found
    found.close()


def sink_to(server, **options):
    return NatsSink(server.url, stream=STREAM, timeout_s=1.0, **options)


def log_steps(bus, first, count):
    for step in range(first, first + count):
        bus.log(IterationEnded(step=step, duration_ns=1_000 + step, loss=float(step)))


def section_window(time_ns):
    """Return a window of one section, which took *time_ns* each of ten times."""
    times = {key: [time_ns] for key in ("min_ns", "max_ns", "median_ns", "mean_ns")}
    bounds = {"window": 0, "first_step": 0, "last_step": 9, "start_ns": 0}
    return SectionWindow(**bounds, **times, std_ns=[0.0], names=["forward"], counts=[10], entries=[10])


def read(server, **options):
    with NatsReader(server.url, stream=STREAM, follow=False, to=IterationEnded, **options) as events:
        return [event.step for event in events]


class TestStream:
    def test_is_what_the_log_has(self, nats_server, bus, tmp_path):
        """The stream has, event by event, the same as a replay of the log: sources and numbers included."""
        set_process_source(Source.detect(rank=3, application="demo"))
        log = tmp_path / "log"  # NATS keeps its stream in tmp_path, where directories come and go
        bus.subscribe(EventLog(log))
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 5_000)
        assert bus.close(10)
        with NatsReader(nats_server.url, stream=STREAM, follow=False) as events:
            streamed = list(events)
        recorded = list(replay(log))
        assert streamed == recorded
        assert [event.seq for event in streamed] == [event.seq for event in recorded]
        assert {event.source for event in streamed} == {event.source for event in recorded}
        assert len(streamed) == 5_002

    def test_extreme_numbers(self, nats_server, bus, losses, bits):
        """Infinities, NaN, negative zero and the limits of the format are read as they were logged."""
        bus.subscribe(sink_to(nats_server))
        for event in losses:
            bus.log(event)
        assert bus.flush(10)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            assert bits(event.loss for event in events) == bits(event.loss for event in losses)

    def test_identity_without_the_beginning(self, nats_server, bus):
        """A reader that begins in the middle knows the sources, too."""
        set_process_source(Source.detect(rank=3, application="demo"))
        sink = sink_to(nats_server)
        bus.subscribe(sink)
        for part in range(3):
            log_steps(bus, part * 10, 10)
            assert bus.flush(10)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, cursor=after(2)) as events:
            later = list(events)
        assert not [event for event in later if isinstance(event, SourceStarted)]
        assert {(event.source.rank, event.source.application) for event in later} == {(3, "demo")}

    def test_what_is_no_frame(self, nats_server, bus):
        """A message that holds no frame is counted and skipped."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        assert bus.flush(10)
        publish(nats_server, f"{STREAM}.other", b"no frame", copies=2)
        log_steps(bus, 3, 3)
        assert bus.flush(10)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            assert [event.step for event in events] == list(range(6))
            assert events.unreadable == 2

    @pytest.mark.parametrize(
        ("subject", "headers"),
        [
            pytest.param(b"run.0.x", b"NATS/1.0 503 x\r\n\r\n", id="status"),
            pytest.param(b"run.0.x", b"NATS/1.0\r\n\nStatus: 503\r\n\r\n", id="status as a field"),
            pytest.param(b"run.0.x", b"NATS/1.0 \xff\xff\xff\r\n\r\n", id="status that is no text"),
            pytest.param(b"run.0.x", b"NATS", id="no headers"),
            pytest.param(b"\xff.0.x", b"NATS/1.0\r\n\r\n", id="subject that is no text"),
            pytest.param(
                b"run.0.x", b"NATS/1.0\r\nTrackside-Source: " + b"[" * 9_000 + b"\r\n\r\n", id="source that is deep"
            ),
        ],
    )
    def test_what_no_client_sends(self, nats_server, bus, subject, headers):
        """A message with a subject or headers that no client library lets pass is counted, and what follows is read."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        assert bus.flush(10)
        nats_server.publish_raw(b"runs." + subject, headers)
        log_steps(bus, 3, 3)
        assert bus.flush(10)
        stop = threading.Event()
        guard = threading.Timer(20, stop.set)
        guard.start()
        with NatsReader(nats_server.url, stream=STREAM, follow=False, stop=stop, to=IterationEnded) as events:
            steps = [event.step for event in events]
            guard.cancel()
            assert (steps, events.unreadable) == (list(range(6)), 1)


class TestWriterSide:
    def test_server_restarts(self, nats_server, bus):
        """While the server is away all events wait; when it is back none is missing and none comes twice."""
        sink = sink_to(nats_server)
        bus.subscribe(sink)
        log_steps(bus, 0, 100)
        assert bus.flush(10)
        nats_server.stop()
        log_steps(bus, 100, 100)
        assert not bus.flush(0.5)
        nats_server.start()
        log_steps(bus, 200, 100)
        assert bus.flush(20)
        assert read(nats_server) == list(range(300))
        assert sink.lost == 0

    def test_acknowledgement_lost(self, nats_server, bus):
        """
        A frame whose acknowledgement came too late is published again, and the server keeps it once.
        """
        sink = sink_to(nats_server)
        bus.subscribe(sink)
        log_steps(bus, 0, 10)
        assert bus.flush(10)
        nats_server.pause()
        log_steps(bus, 10, 10)
        assert not bus.flush(3.0)  # published, and perhaps more than once; there is no answer
        nats_server.resume()
        assert bus.flush(20)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            assert [event.step for event in events] == list(range(20))
            assert events.repeated == 0
        assert sink.lost == 0

    def test_killed_writer(self, nats_server, tmp_path):
        """Events that were flushed before a SIGKILL are in the stream; the next process adds its own."""
        script = tmp_path / "writer.py"
        script.write_text(
            textwrap.dedent(
                f"""
                import os, signal
                from trackside.bus import Bus
                from trackside.events import IterationEnded
                from trackside.handlers.nats import NatsSink
                bus = Bus()
                bus.subscribe(NatsSink({nats_server.url!r}, stream={STREAM!r}))
                for step in range(50):
                    bus.log(IterationEnded(step=step, duration_ns=1))
                assert bus.flush(10)
                os.kill(os.getpid(), signal.SIGKILL)
                """
            )
        )
        for _ in range(2):
            done = subprocess.run([sys.executable, str(script)], check=False, timeout=60)
            assert done.returncode == -signal.SIGKILL
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            steps = {}
            for event in events:
                steps.setdefault(event.source.id, []).append(event.step)
        assert list(steps.values()) == [list(range(50)), list(range(50))]

    def test_no_room(self, nats_server, bus):
        """Events beyond the buffer are dropped, and counted exactly."""
        sink = sink_to(nats_server, buffer_bytes=1)
        nats_server.stop()
        subscription = bus.subscribe(sink)
        for first in range(0, 5_000, 1_000):
            log_steps(bus, first, 1_000)
            bus.flush(0.2)
        subscription.close(0.5)
        [stats] = bus.stats().handlers
        assert stats.balance == 0
        assert stats.handled == 0
        assert stats.dropped == stats.logged >= 5_000
        assert sink.losses() != {}

    def test_nodes_share_the_ranks(self, eventually):
        """Of many ranks that are given the same servers some connect to each of them first."""
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            servers = [f"nats://127.0.0.1:{node.getsockname()[1]}" for node in nodes]
            for _ in range(40):  # with none of 40 at one of three: once in four million runs
                bus = Bus()
                stack.callback(bus.close, 0.0)
                bus.subscribe(NatsSink(servers, stream=STREAM, timeout_s=60.0))
                log_steps(bus, 0, 1)
            eventually(lambda: len(select.select(nodes, [], [], 0)[0]) == 3, what="each has a connection")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_fork(self, nats_server, tmp_path):
        """A forked child streams as a source of its own, and the parent's stream is whole."""
        script = textwrap.dedent(
            f"""
            import os
            from trackside.bus import default_bus as bus
            from trackside.events import IterationEnded
            from trackside.handlers.nats import NatsSink
            bus.subscribe(NatsSink({nats_server.url!r}, stream={STREAM!r}))
            bus.log(IterationEnded(step=1, duration_ns=1))
            assert bus.flush(10)
            pid = os.fork()
            bus.log(IterationEnded(step=2 if pid else 3, duration_ns=1))
            assert bus.flush(10)
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            bus.log(IterationEnded(step=4, duration_ns=1))
            assert bus.close(10)
            """
        )
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            steps = {}
            for event in events:
                steps.setdefault(event.source.role, []).append(event.step)
        assert steps == {"main": [1, 2, 4], "worker": [3]}


class TestReaderSide:
    def test_goes_on_from_any_event(self, nats_server, bus):
        """A reader that stops after any event, in the middle of a frame too, is gone on from by another."""
        bus.subscribe(sink_to(nats_server))
        for part in range(4):
            log_steps(bus, part * 25, 25)
            assert bus.flush(10)
        cursor, steps = None, []
        for taken in (1, 7, 20, 30, 24, 1, 100):
            with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded, cursor=cursor) as events:
                for _, event in zip(range(taken), events, strict=False):
                    steps.append(event.step)
                cursor = events.cursor
        assert steps == list(range(100))

    def test_leaves_nothing(self, nats_server, bus, eventually):
        """Of readers that are closed, at the end or before it, the server keeps no consumer."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        assert bus.flush(30)
        for follows in (False, True):
            with NatsReader(nats_server.url, stream=STREAM, follow=follows, to=IterationEnded) as events:
                assert [next(events).step for _ in range(3)] == [0, 1, 2]
        assert len(list(replay(f"{nats_server.url}/{STREAM}", to=IterationEnded))) == 3

        def consumers():
            return nats_server.call(lambda jetstream: jetstream.consumers_info(STREAM))

        eventually(lambda: consumers() == [], what="the server has removed them")

    def test_subscribes_anew(self, nats_server, bus):
        """However often a reader has subscribed anew, its client has the latest subscription and that for answers."""
        assert [subscriptions for subscriptions, _ in subscribed_anew(nats_server, bus)] == [2, 2, 2, 2, 1]

    def test_subscribes_anew_at_the_server(self, nats_server, bus):
        """However often a reader has subscribed anew, the server has one consumer of it; none when it is closed."""
        assert [consumers for _, consumers in subscribed_anew(nats_server, bus)] == [1, 1, 1, 1, 0]

    def test_server_restarts(self, nats_server, bus, eventually):
        """A reader that is waiting goes on when the server is back, without loss or repetition."""
        bus.subscribe(sink_to(nats_server))
        stop = threading.Event()
        steps = []

        def follow():
            with NatsReader(
                nats_server.url, stream=STREAM, stop=stop, to=IterationEnded, poll_interval_s=0.1
            ) as events:
                for event in events:
                    steps.append(event.step)  # noqa: PERF401  each at once: the test waits for them

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        log_steps(bus, 0, 50)
        assert bus.flush(10)
        eventually(lambda: len(steps) == 50, what="the first fifty were read")
        nats_server.stop()
        log_steps(bus, 50, 50)
        nats_server.start()
        assert bus.flush(20)
        eventually(lambda: len(steps) >= 100, what="the others were read")
        stop.set()
        reader.join(30)
        assert steps == list(range(100))

    def test_repeated_in_the_stream(self, nats_server, bus):
        """A frame that is in the stream twice, because the server forgot that it had it, is read once."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 10)
        assert bus.flush(10)
        frames = raw_messages(nats_server)
        for data, headers in frames:
            publish(nats_server, f"{STREAM}.again", data, headers={"Trackside-Source": headers["Trackside-Source"]})
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            assert [event.step for event in events] == list(range(10))
            assert events.repeated == 11
            assert events.missing == 0

    def test_removed_from_the_stream(self, nats_server, bus):
        """Events that the stream no longer keeps are counted as missing."""
        bus.subscribe(sink_to(nats_server))
        for part in range(3):
            log_steps(bus, part * 10, 10)
            assert bus.flush(10)
        delete(nats_server, 2)
        with NatsReader(nats_server.url, stream=STREAM, follow=False, to=IterationEnded) as events:
            assert [event.step for event in events] == [*range(10), *range(20, 30)]
            assert events.missing == 10

    def test_stop(self, nats_server, bus):
        """A reader that waits for more ends when it is stopped."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 1)
        assert bus.flush(10)
        stop = threading.Event()
        steps = []
        with NatsReader(nats_server.url, stream=STREAM, stop=stop, to=IterationEnded) as events:
            for event in events:
                steps.append(event.step)
                threading.Timer(0.1, stop.set).start()
        assert steps == [0]


def subscribed_anew(server, bus):
    """
    Have a reader subscribe four times and close it; return the numbers of its client's subscriptions and of the
    server's consumers after each of these.
    """
    bus.subscribe(sink_to(server))
    log_steps(bus, 0, 1)
    assert bus.flush(30)

    async def subscribe(jetstream):
        async def numbers():
            return len(jetstream._nc._subs), len(await jetstream.consumers_info(STREAM))

        pull = StreamPull(STREAM, f"{STREAM}.>", poll_interval_s=0.01)
        found = []
        for _ in range(4):
            await pull.fetch(jetstream)
            found.append(await numbers())
            pull.reset()
        await pull.close(jetstream)
        return [*found, await numbers()]

    return server.call(subscribe)


class TestAsLog:
    """The address of a stream in place of a path of logs."""

    @pytest.fixture
    def runs(self, nats_server, tmp_path):
        """Record two runs of two ranks each in files and in a stream; return the directory and the address."""
        for run in ("first", "second"):
            for rank in range(2):
                source = Source.detect(run_id=run, rank=rank, world_size=2, application="demo")
                with Bus(source=source) as bus:
                    bus.subscribe(EventLog(tmp_path / "runs"))
                    bus.subscribe(sink_to(nats_server))
                    log_steps(bus, 0, 50)
                    bus.log(section_window(time_ns=1e6 * (1 + rank)))
                    assert bus.flush(30)
        return tmp_path / "runs", f"{nats_server.url}/{STREAM}"

    def test_replay(self, runs):
        """Every event equals that of the files."""
        directory, address = runs
        assert list(replay(address)) == list(replay(directory))

    @pytest.mark.parametrize(
        ("part", "ranks"), [("first", {("first", 0), ("first", 1)}), ("second/1", {("second", 1)}), ("third", set())]
    )
    def test_parts(self, runs, part, ranks):
        """A run's id and a rank behind the stream's name select what is read; the server sends nothing else."""
        _, address = runs
        found = copied(f"{address}/{part}")
        files = list(found.directory.rglob("*.tslog"))
        assert {(event.source.run_id, event.source.rank) for file in files for event in replay(file)} == ranks

    def test_sends_no_more(self, start_nats):
        """Of a stream of two runs of four ranks the server sends a half for one run, and an eighth for one rank."""
        port = free_port()
        server = start_nats("-m", str(port))
        for run in ("first", "second"):
            for rank in range(4):
                with Bus(source=Source.detect(run_id=run, rank=rank, world_size=4)) as bus:
                    bus.subscribe(sink_to(server))
                    log_steps(bus, 0, 20_000)
                    assert bus.flush(30)

        def sent_bytes():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=5) as answer:
                return json.load(answer)["out_bytes"]

        def sent_for(part):
            before = sent_bytes()
            copied(f"{server.url}/{STREAM}{part}")
            return sent_bytes() - before

        whole = sent_for("")
        assert whole > 500_000
        assert sent_for("/second") == pytest.approx(whole / 2, rel=0.1)
        assert sent_for("/second/1") == pytest.approx(whole / 8, rel=0.1)

    @pytest.mark.parametrize(
        "command",
        [
            ("report", "--session", "first"),
            ("goodput", "--json", "--session", "first"),
            ("runs", "--json"),
            ("tail", "-n", "20", "-v"),
            ("export", "--jsonl", "-"),
            ("top", "--once", "--plain"),
            ("scores", "--json"),
            ("trace", "--session", "first"),
            ("info", "--json"),
        ],
    )
    def test_commands(self, runs, command, capsys, tmp_path, monkeypatch):
        """A command prints the same for the stream as for the files, but for the files' places and sizes."""
        monkeypatch.chdir(tmp_path)  # a trace is written there
        outputs = []
        for where in map(str, runs):
            code = main([command[0], where, *command[1:]])
            printed = capsys.readouterr()
            # The header of a file says in one byte or two how exactly the clocks were read.
            out = printed.out.replace(where, "WHERE")
            out = re.sub(r'[0-9:]{8}  |(?<="path": ")[^"]*/|(?<="size_bytes": )[0-9]+', "", out)
            outputs.append((code, out, printed.err))
        assert outputs[0] == outputs[1]
        assert outputs[0][0] == 0

    def test_top_until_the_end(self, runs, capsys):
        """The last line that `top` prints is the same as for the files, but for the rate, which goes out in time."""
        lasts = []
        for where in map(str, runs):
            assert main(["top", "--plain", where]) == 0
            lasts.append(re.sub(r"^[0-9:]{8}  |[0-9.]+ steps/s, ", "", capsys.readouterr().out.splitlines()[-1]))
        assert lasts[0] == lasts[1]
        assert re.fullmatch(r"second: step 49, goodput [0-9.]+ %, ended, 0 lost", lasts[0])

    def test_top_of_a_run(self, runs, capsys):
        """Of a run that no collector has read `top` reads all: it prints the same as for the files."""
        directory, address = runs
        outputs = []
        for where in (str(directory), f"{address}/second"):  # of several runs it shows the latest
            assert main(["top", "--once", "--plain", where]) == 0
            outputs.append(re.sub(r"[0-9:]{8}  ", "", capsys.readouterr().out))
        assert outputs[0] == outputs[1]
        assert "step 49" in outputs[0]

    def test_first_node_is_dead(self, runs):
        """Of several nodes in an address the first may be gone: another one answers before a command gives up."""
        directory, address = runs
        host = address.removeprefix("nats://")
        assert list(replay(f"nats://127.0.0.1:{free_port()},{host}")) == list(replay(directory))

    def test_compare(self, runs, capsys):
        """Two runs of a stream are compared as the same two of files, by their names or by their places in it."""
        directory, address = runs
        outputs = []
        for names in (("--in", str(directory), "first", "second"), ("--in", address, "first", "second"), None):
            code = main(["compare", *(names or (f"{address}/first", f"{address}/second"))])
            out = capsys.readouterr().out.replace(f"{address}/", "")
            outputs.append((code, out))
        assert outputs[0] == outputs[1] == outputs[2]
        assert "B: second: 1 run(s), 2 rank(s), 50 steps" in outputs[0][1]

    def test_follow(self, nats_server, bus):
        """Events that are published while a stream is followed come after the earlier ones."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 1)
        assert bus.flush(30)
        events = follow(f"{nats_server.url}/{STREAM}", to=IterationEnded, poll_interval_s=0.05)
        assert next(events).step == 0
        log_steps(bus, 1, 2)
        assert bus.flush(30)
        assert [next(events).step, next(events).step] == [1, 2]

    def test_tail_follows(self, nats_server, bus):
        """`trackside tail --follow` prints what is in the stream, then what is published, until Ctrl-C."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 2)
        assert bus.flush(30)
        listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        code = f"{listen}from trackside.cli import main; sys.exit(main(sys.argv[1:]))"  # a test run may ignore Ctrl-C
        line = [sys.executable, "-c", code, "tail", "--follow", "--json", "-t", "*.iteration.ended"]
        with subprocess.Popen([*line, f"{nats_server.url}/{STREAM}"], stdout=subprocess.PIPE) as process:
            steps = [json.loads(process.stdout.readline())["step"] for _ in range(2)]
            log_steps(bus, 2, 2)
            assert bus.flush(30)
            steps += [json.loads(process.stdout.readline())["step"] for _ in range(2)]
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == b""
        assert (steps, process.returncode) == ([0, 1, 2, 3], 130)

    def test_collector(self, nats_server, tmp_path):
        """A job whose collector is a stream has published all of its events there when it is closed."""
        address = f"{nats_server.url}/{STREAM}"
        job = trackside.start(tmp_path / "runs", remote=Remote(collector=address))
        log_steps(trackside.bus.default_bus, 0, 20)
        assert job.close(timeout_s=60)
        assert list(replay(address)) == list(replay(tmp_path / "runs"))

    def test_since(self, nats_server, bus):
        """With a time behind the address what the server stored earlier is not read."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        assert bus.flush(30)
        since = datetime.datetime.now(datetime.timezone.utc).isoformat()
        log_steps(bus, 3, 3)
        assert bus.flush(30)
        events = replay(f"{nats_server.url}/{STREAM}?since={since}", to=IterationEnded)
        assert [event.step for event in events] == [3, 4, 5]

    def test_attach(self, nats_server, bus, capsys):
        """`trackside attach` prints what is published from then on, and nothing of before."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        assert bus.flush(30)
        is_over = threading.Event()

        def publish_more():
            step = 3
            while not is_over.wait(0.01):
                log_steps(bus, step, 1)
                step += 1

        publisher = threading.Thread(target=publish_more)
        publisher.start()
        try:
            address = f"{nats_server.url}/{STREAM}"
            assert main(["attach", address, "--json", "-n", "5", "-t", "*.iteration.ended", "--ranks", "0"]) == 0
        finally:
            is_over.set()
            publisher.join()
        steps = [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()]
        assert steps == list(range(steps[0], steps[0] + 5))
        assert steps[0] >= 3

    def test_attach_by_priority(self, nats_server, bus, capsys):
        """Of a stream, as of a job, `trackside attach` prints only events of the priority that is asked for."""
        bus.subscribe(sink_to(nats_server))
        log_steps(bus, 0, 3)
        bus.log(ProgramEnded(exit_status=0))
        assert bus.flush(30)
        address = f"{nats_server.url}/{STREAM}?since=1"
        assert main(["attach", address, "--json", "-n", "2", "--min-priority", "lifecycle"]) == 0
        printed = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
        assert printed == ["trackside.source.started", "trackside.program.ended"]

    def test_attach_to_nothing(self, nats_server, capsys):
        """A stream that does not exist cannot be watched: one line, and exit code 2."""
        assert main(["attach", f"{nats_server.url}/elsewhere"]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert "has no stream elsewhere" in printed

    def test_run(self, nats_server, tmp_path, monkeypatch, capfd):
        """`trackside run --collector` has the job publish to the stream, and notes there how it ended, and reports."""
        monkeypatch.chdir(tmp_path)
        job = (
            "import sys, trackside\n"
            "with trackside.start('own', report=False), trackside.training_loop(0):\n"
            "    for _ in range(20):\n"
            "        with trackside.training_iteration():\n"
            "            pass\n"
            "sys.exit(3)"
        )
        address = f"{nats_server.url}/{STREAM}"
        assert main(["run", "--collector", address, "--", sys.executable, "-c", job]) == 3
        assert "1 rank on 1 host, 1 attempt" in capfd.readouterr().out
        events = list(replay(address))
        assert [event.step for event in events if isinstance(event, IterationEnded)] == list(range(20))
        assert [event.exit_status for event in events if isinstance(event, ProgramEnded)] == [3]

    def test_causes_of_an_error(self):
        """The causes of an error are those that the client names, and nothing of how a loop was looked for."""
        with pytest.raises(UnreadableError) as raised:
            collected(f"nats://127.0.0.1:{free_port()}/{STREAM}/run")
        said, error = [], raised.value
        while error is not None:
            said.append(str(error))
            error = error.__cause__ or error.__context__
        assert len(said) > 1
        assert [text for text in said if "event loop" in text] == []

    @pytest.mark.parametrize(
        ("command", "address", "line"),
        [
            ("report", "{server}/elsewhere", "has no stream elsewhere"),
            ("report", "nats://127.0.0.1:1/runs", "no answer within 5 s"),
            ("report", "{server}/two words", "give nats://HOST:PORT/STREAM"),
            ("report", "{server}/runs?since=noon", "give a time as 2026-01-31T12:00:00Z"),
            ("top", "{server}/elsewhere/run", "has no stream elsewhere"),
            ("top", "{server}/two words", "give nats://HOST:PORT/STREAM"),
        ],
    )
    def test_not_there(self, nats_server, capsys, command, address, line):
        """An unreadable stream is one line, with exit code 2."""
        assert main([command, address.format(server=nats_server.url)]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert line in printed


# --- the client, used plainly ----------------------------------------------------------------------------------


def publish(server, subject, data, *, copies=1, headers=None):
    async def use(stream):
        for _ in range(copies):
            await stream.publish(subject, data, headers=headers)

    server.call(use)


def raw_messages(server):
    async def use(stream):
        last = (await stream.stream_info(STREAM)).state.last_seq
        found = [await stream.get_msg(STREAM, seq) for seq in range(1, last + 1)]
        return [(message.data, message.headers) for message in found]

    return server.call(use)


def delete(server, sequence):
    server.call(lambda stream: stream.delete_msg(STREAM, sequence))


def after(sequence):
    return {"sequence": sequence, "events": 0, "sources": {}}

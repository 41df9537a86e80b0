"""Turning telemetry on and off again."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import sys
import threading
import time

import attrs
import pytest

import trackside
from children import in_child
from interrupting import Interruption, interrupter, interrupting_once
from trackside.events import (
    ClockAnchored,
    ConfigError,
    CounterWindow,
    Event,
    Heartbeat,
    Parent,
    RunsOn,
    SourceEnded,
    SourceStarted,
    clock,
    event,
    process_source,
    set_process_source,
)
from trackside.handlers import Capture, replay
from trackside.handlers.export import BatchExporter
from trackside.handlers.models.counters import CounterBoard
from trackside.job import Remote, start
from trackside.job._inherit import VARIABLE

DEADLINE_S = 30.0


@event("test.start.said")
class Said(Event):
    """An event with a text."""

    text: str = ""


class Telegraph:
    """Sends each text to a server, as the sinks for other vendors' systems do."""

    runs_on = RunsOn.WORKER

    def __init__(self, port):
        self._port = port
        self._exporter = BatchExporter(self._deliver, name="telegraph")

    @property
    def lost(self):
        """Events that were accepted and never delivered."""
        return self._exporter.lost

    def __call__(self, given):
        """Accept a text."""
        if isinstance(given, Said):
            self._exporter.put(given.text)

    def close(self, timeout_s):
        """Try again to send the texts that wait."""
        return self._exporter.close(timeout_s)

    def _deliver(self, texts):
        with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as server:
            server.sendall("".join(texts).encode())


@pytest.fixture
def dead_port():
    """Give a port of this machine at which no handler listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def recorded(job, kind=Event):
    """Return the events of type *kind* that *job* wrote."""
    return list(replay(job.directory, to=kind))


class TestStart:
    def test_event_log(self, run, bus):
        """Events logged while the job runs are in its event log."""
        with run() as job:
            bus.log(Said(text="a"))
            bus.log(Said(text="b"))

        assert [said.text for said in recorded(job, Said)] == ["a", "b"]

    def test_not_before_and_not_after(self, run, bus):
        """Events logged before and after are not."""
        bus.log(Said(text="before"))
        with run() as job:
            bus.log(Said(text="during"))
        bus.log(Said(text="after"))

        assert [said.text for said in recorded(job, Said)] == ["during"]

    def test_first_and_last(self, run):
        """The stream begins with the source and ends with the reason of its end."""
        with run() as job:
            pass
        events = recorded(job)

        assert type(events[0]) is SourceStarted
        assert type(events[-1]) is SourceEnded
        assert events[-1].reason == "closed"

    def test_interrupted_before_a_model(self, run, bus, monkeypatch):
        """Of a start that is interrupted between two models kept for viewers, no handler stays subscribed."""
        with interrupting_once() as interrupt:
            monkeypatch.setattr(CounterBoard, "__init__", lambda *_: interrupt())
            with pytest.raises(Interruption):
                run(remote=Remote(publish=True))
        assert bus.is_idle

    def test_interrupted(self, run, bus, monkeypatch):
        """A start that an exception of the program's signal handler interrupts at its end leaves nothing behind."""
        with interrupting_once() as interrupt:
            monkeypatch.setattr("trackside.job._start.announce", lambda *_: interrupt())
            with pytest.raises(Interruption):
                run()
            assert (bus.is_idle, VARIABLE in os.environ) == (True, False)
            job = run()
            assert job.close()
        assert [ended.reason for ended in recorded(job, SourceEnded)] == ["not started", "closed"]

    def test_every_number_once(self, run, bus):
        """The numbers of the stream are dense from 0, also where others listened before."""
        bus.subscribe(Capture(), runs_on=RunsOn.WORKER)
        bus.log(Said(text="another stream"))
        with run() as job:
            bus.log(Said())
        seqs = [recording.seq for recording in recorded(job)]

        assert seqs == list(range(len(seqs)))

    def test_exception(self, run):
        """A job that an exception ends has its name as the reason, and the exception goes on."""
        with pytest.raises(ZeroDivisionError), run() as job:
            1 / 0  # noqa: B018

        assert recorded(job, SourceEnded)[0].reason == "ZeroDivisionError"

    def test_counter_windows(self, run, bus):
        """The counters' windows are published, the last ones at the end."""
        with run(collect_interval_s=1000) as job:
            bus.counter("train.tokens").add(5)
        windows = [window for window in recorded(job, CounterWindow) if window.name == "train.tokens"]

        assert [(window.count, window.total_sum) for window in windows] == [(1, 5.0)]

    def test_heartbeats(self, run):
        """There are heartbeats, the last one at the end, and readings of the clock."""
        with run(heartbeat_interval_s=1000) as job:
            pass

        assert [beat.sequence for beat in recorded(job, Heartbeat)][:1] == [0]
        assert len(recorded(job, ClockAnchored)) == 1

    def test_identity_from_the_launcher(self, run, monkeypatch):
        """The source's identity comes from the launcher's variables."""
        for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "exp-7"}.items():
            monkeypatch.setenv(name, value)
        with run() as job:
            pass
        source = recorded(job)[0].source

        assert (source.rank, source.local_rank, source.world_size, source.run_id) == (3, 1, 8, "exp-7")
        assert source.role == "main"
        assert sorted(source.versions) == ["core", "python", "trackside"]

    def test_parent(self, run, monkeypatch):
        """A process whose variables name its parent has the parent in its source."""
        monkeypatch.setenv("TRACKSIDE_PARENT", "0123456789abcdef:7")
        with run() as job:
            pass

        assert recorded(job)[0].source.parent == Parent("0123456789abcdef", 7)

    def test_identity_of_every_event(self, run, bus):
        """While the job runs the process has the job's source, and no longer than that."""
        with run() as job:
            during = process_source()
        after = process_source()

        assert during is job.source
        assert after is not job.source

    def test_handlers(self, run, bus):
        """Handlers are subscribed for as long as the job runs."""
        captured = Capture()
        with run(handlers=[captured]):
            bus.log(Said(text="during"))
        bus.log(Said(text="after"))

        assert [said.text for said in captured.of(Said)] == ["during"]

    def test_again(self, run, bus):
        """After one job there may be another, with a stream of its own."""
        for text in "ab":
            with run() as job:
                bus.log(Said(text=text))
        streams = {}
        for said in recorded(job, Said):
            streams.setdefault(said.source.id, []).append(said.text)

        assert sorted(streams.values()) == [["a"], ["b"]]

    def test_twice_at_once(self, run):
        """Starting telemetry twice is an error that says where it is recorded already; the first job goes on."""
        job = run()
        with pytest.raises(ConfigError, match=r"telemetry is on already, into .*runs; close that first"):
            run()

        assert job.is_open

    def test_within_another_start(self, run, bus):
        """While one call turns telemetry on, another one is refused: here one from its iterable of handlers."""

        def handlers():
            with pytest.raises(ConfigError, match="another call is turning telemetry on"):
                run()
            yield Capture()

        assert run(handlers=handlers()).is_open

    def test_while_another_job_closes(self, run, bus):
        """A job that is being closed must be over before another one starts."""
        answers = []

        def begin_another(_):
            if not job.is_open and not answers:
                answers.append("started")
                try:
                    run()
                except ConfigError as error:
                    answers[:] = [error.remedy.rpartition("; ")[2]]

        job = run()
        with bus.subscribe(begin_another, to=Heartbeat):
            job.close()
        assert answers == ["close that first, if need be with trackside.job.running_job().close()"]

    def test_bus_that_was_closed(self, run, bus):
        """A job on a bus that was closed during another one is refused for that reason."""
        run()
        bus.close()
        with pytest.raises(ConfigError, match=r"close\(\) has closed the bus for good"):
            run()

    def test_summary_of_a_second_job(self, run, bus, capsys):
        """The summary of a job has the events of that job, not those of an earlier one in this process."""
        said = []
        for texts in ("abc", "ab"):
            with run(report=True):
                for text in texts:
                    bus.log(Said(text=text))
            said.append(re.search(r"(\d+) test\.\S*said", capsys.readouterr().err).group(1))
        assert said == ["3", "2"]

    def test_losses_of_a_second_job(self, run, bus, capsys):
        """The summary of a job has the losses of that job, not those of an earlier one in this process."""
        lost = []
        for text in (object(), "no object"):
            with run(report=True):
                bus.log(Said(text=text))
            lost.append(re.search(r"  lost +(.*)", capsys.readouterr().err).group(1))
        assert re.match(r"EventLog 1 of \d+ events, ", lost[0])
        assert lost[1] == "nothing"

    def test_counters_of_a_second_job(self, run, bus, capsys):
        """The totals of a counter, in windows and in the summary, are those of the job, not of an earlier one, too."""
        tokens = bus.counter("tokens")
        said = []
        for amounts in ((1, 2), (2, 3)):
            with run(report=True) as job:
                for amount in amounts:
                    tokens.add(amount)
            said.append(re.search(r"tokens: (\d+)", capsys.readouterr().err).group(1))
        assert [window.total_sum for window in recorded(job, CounterWindow)] == [3, 5]
        assert said == ["3", "5"]

    def test_anchor_of_a_second_job(self, run):
        """By its source's anchor a second job began after the first, and the same ``at_ns`` is computed from it."""
        with run() as first:
            pass
        between_ns = clock.now_ns()
        with run() as second:
            pass
        earlier, later = first.source.anchor, second.source.anchor
        assert earlier.wall_ns <= between_ns <= later.wall_ns
        assert later.wall_ns - later.mono_ns == clock.offset_ns

    def test_heartbeats_of_a_second_job(self, run, bus):
        """The heartbeats of a job count the events of that job, from which its report tells what is missing."""
        with run():
            bus.log(Said(text=object()))
        with run() as job:
            pass
        counts = [beat.counts for beat in recorded(job, Heartbeat) if beat.source.id == job.source.id]
        assert counts[0]["published"] == 0
        assert counts[-1]["invalid"] == 0

    def test_nothing_stays(self, run, bus):
        """A closed job leaves no subscriber, no thread of its own and no environment variable for children."""
        with run():
            assert VARIABLE in os.environ
        names = [thread.name for thread in threading.enumerate()]

        assert bus.is_idle
        assert VARIABLE not in os.environ
        assert "trackside-heartbeat" not in names


class TestArguments:
    @pytest.mark.parametrize("field", ["job", "remote", "redact", "handlers"])
    def test_of_another_kind(self, run, bus, field):
        """An argument of a wrong kind is an error that names it, and nothing is started."""
        with pytest.raises(ConfigError, match=f"^{field}: got True; give a "):
            run(**{field: True})

        assert bus.is_idle

    def test_handlers_of_a_generator(self, run, bus):
        """Handlers may come from any iterable: each gets the events."""
        captured = Capture()
        with run(handlers=(one for one in [captured])):
            bus.log(Said(text="hello"))

        assert [said.text for said in captured.events if isinstance(said, Said)] == ["hello"]

    @pytest.mark.parametrize("field", ["collect_interval_s", "heartbeat_interval_s"])
    @pytest.mark.parametrize("given", [0, -1, float("nan"), float("inf"), "1", None])
    def test_seconds(self, run, bus, field, given):
        """Intervals are seconds; anything else is refused by name, and nothing is turned on."""
        with pytest.raises(ConfigError) as caught:
            run(**{field: given})

        assert caught.value.field == field
        assert bus.is_idle

    def test_directory_below_a_file(self, tmp_path, bus):
        """A path that can never be a directory is refused."""
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError) as caught:
            start(tmp_path / "file" / "runs", bus=bus)

        assert caught.value.field == "directory"

    def test_launcher_with_a_bad_rank(self, run, monkeypatch, bus):
        """A launcher's variable that is no number is named, and nothing is turned on."""
        monkeypatch.setenv("RANK", "three")
        with pytest.raises(ConfigError, match="RANK: got 'three'"):
            run()

        assert bus.is_idle

    def test_bad_handler(self, run, bus):
        """A handler that cannot be called is refused; everything turned on by then is turned off again."""
        captured = Capture()
        with pytest.raises(ConfigError, match="handler: got 3"):
            run(handlers=[captured, 3], redact=lambda said: None)

        assert bus.is_idle
        assert bus.redact is None
        assert VARIABLE not in os.environ

    def test_good_after_bad(self, run, bus):
        """After an error the right call works."""
        with pytest.raises(ConfigError):
            run(handlers=[3])
        with run() as job:
            bus.log(Said(text="a"))

        assert [said.text for said in recorded(job, Said)] == ["a"]


class TestRedact:
    def test_before_it_is_recorded(self, run, bus):
        """The event that the redaction returns is recorded, and the one that it was given is not."""
        hide = lambda given: attrs.evolve(given, text="***") if isinstance(given, Said) else given  # noqa: E731
        with run(redact=hide) as job:
            bus.log(Said(text="secret"))

        assert [said.text for said in recorded(job, Said)] == ["***"]
        assert all(b"secret" not in path.read_bytes() for path in job.log.paths)

    def test_none(self, run, bus):
        """An event for which the redaction returns None is not recorded, and counted."""
        with run(redact=lambda given: None if isinstance(given, Said) else given, report=False) as job:
            bus.log(Said(text="secret"))

        assert recorded(job, Said) == []

    def test_undone(self, run, bus):
        """The bus has its own redaction back afterwards."""
        own = bus.redact = lambda given: given
        with run(redact=lambda given: None):
            pass

        assert bus.redact is own

    def test_of_the_bus(self, run, bus):
        """A job without redaction leaves that of the bus in force."""
        bus.redact = lambda given: None if isinstance(given, Said) else given
        with run() as job:
            bus.log(Said(text="secret"))

        assert recorded(job, Said) == []


class TestReport:
    def test_first_rank(self, run, bus, capsys):
        """Rank 0 prints the summary to stderr."""
        with run(report=None) as job:
            bus.log(Said())
        printed = capsys.readouterr()

        assert printed.out == ""
        assert printed.err.startswith(f"trackside: {job.source.run_id}, rank 0 of 1, attempt 0, ")
        assert printed.err.endswith(f"  look      trackside report {job.directory}\n")
        assert "1 test.start.said" in printed.err

    def test_other_ranks(self, run, bus, capsys, monkeypatch):
        """Another rank prints nothing."""
        monkeypatch.setenv("RANK", "1")
        with run(report=None):
            pass

        assert capsys.readouterr().err == ""

    def test_other_ranks_that_lost(self, run, bus, capsys, monkeypatch):
        """A rank that lost events prints so, whichever rank it is."""
        monkeypatch.setenv("RANK", "1")
        with run(report=None):
            bus.log(Said(text=object()))

        assert "lost      EventLog 1 of " in capsys.readouterr().err

    def test_what_is_lost_while_closing(self, run, bus, capsys, monkeypatch, dead_port):
        """
        Events that a sink accepted, held for its dead server and gave up when closed are reported as lost, on any rank.
        """
        monkeypatch.setenv("RANK", "1")
        with run(report=None, handlers=[Telegraph(dead_port)]):
            for _ in range(3):
                bus.log(Said())

        assert "lost      Telegraph 3 of " in capsys.readouterr().err

    @pytest.mark.hang_guard(60)
    def test_what_is_not_known(self, run, bus, capsys, monkeypatch):
        """If a sink does not return from close(), its accepted events are reported as possibly lost, on any rank."""
        monkeypatch.setenv("RANK", "1")
        never = threading.Event()

        class Silent:
            runs_on = RunsOn.WORKER

            def __call__(self, given):
                pass

            def close(self, timeout_s):
                never.wait(DEADLINE_S)

        job = run(report=None, handlers=[Silent()])
        bus.log(Said())
        job.close(timeout_s=0.5)
        never.set()

        assert re.search(
            r"lost      nothing that is known; \S*Silent was not done in time with \d events$",
            capsys.readouterr().err,
            re.MULTILINE,
        )

    @pytest.mark.parametrize(("report", "lines"), [(True, 1), (False, 0)])
    def test_as_asked(self, run, capsys, monkeypatch, report, lines):
        """If asked to, any rank prints it, or none."""
        monkeypatch.setenv("RANK", "1")
        with run(report=report):
            pass

        assert capsys.readouterr().err.count("trackside: ") == lines

    @pytest.mark.parametrize("stream", [None, "closed"])
    def test_no_stderr(self, run, monkeypatch, stream):
        """A process without stderr, or with a closed one, ends like any other."""
        closed = io.StringIO()
        closed.close()
        job = run(report=True)
        monkeypatch.setattr(sys, "stderr", None if stream is None else closed)
        done = job.close()
        monkeypatch.undo()

        assert done


class TestClose:
    def test_returns_whether_all_was_written(self, run, bus):
        """close() returns True when everything was written."""
        job = run()
        bus.log(Said())

        assert job.close(timeout_s=60)

    def test_twice(self, run, bus, capsys):
        """Closing a second time does nothing."""
        job = run(report=True)
        job.close()
        capsys.readouterr()

        assert (job.close(), capsys.readouterr().err) == (True, "")

    def test_reason(self, run):
        """The reason given is in the log."""
        job = run()
        job.close(reason="preempted")

        assert recorded(job, SourceEnded)[0].reason == "preempted"

    def test_what_models_publish_last(self, run, bus):
        """
        Events that a model publishes when it reads the last ones are in the log before the end, in the same stream.
        """

        class Echo:
            runs_on = RunsOn.DISPATCHER

            def __call__(self, given):
                if type(given) is Said and given.text == "a":
                    bus.log(Said(text="a's echo"))

        job = run(handlers=[Echo()])
        bus.log(Said(text="a"))
        job.close()

        reported = recorded(job)
        assert [said.text for said in reported if isinstance(said, Said)] == ["a", "a's echo"]
        assert isinstance(reported[-1], SourceEnded)
        assert len({said.source.id for said in reported}) == 1

    @pytest.mark.hang_guard(60)
    def test_logged_after_the_end(self, run, bus):
        """An event after the end of the stream, as of a thread that goes on, begins no other one in the log."""

        class Late:
            runs_on = RunsOn.DISPATCHER

            def __call__(self, event):
                if isinstance(event, SourceEnded):
                    bus.log(Said(text="late"))

        job = run(handlers=[Late()])
        bus.log(Said(text="in time"))
        assert job.close(timeout_s=60)
        assert [said.text for said in recorded(job, Said)] == ["in time"]
        assert (len(recorded(job, SourceStarted)), len(recorded(job, SourceEnded))) == (1, 1)

    def test_stalled_sink(self, run, bus, caplog):
        """A sink that blocks for ever does not keep a job from closing, nor the log from being whole."""
        caplog.set_level(logging.CRITICAL, "trackside")
        blocked, never = threading.Event(), threading.Event()

        class Stalled:
            runs_on = RunsOn.WORKER

            def __call__(self, given):
                blocked.set()
                never.wait()

        job = run(handlers=[Stalled()])
        bus.log(Said(text="a"))
        bus.flush(0.01)
        blocked.wait(DEADLINE_S)
        began_s = time.monotonic()
        closed = job.close(timeout_s=1.0)
        took_s = time.monotonic() - began_s
        never.set()

        assert not closed
        assert took_s < 5.0
        assert [said.text for said in recorded(job, Said)] == ["a"]

    @pytest.mark.hang_guard(60)
    def test_stalled_redaction(self, run, bus, capsys):
        """
        A redaction that blocks keeps no job from closing in time; the number of events that waited is reported as
        unknown.
        """
        never = threading.Event()

        def redact(given):
            never.wait(DEADLINE_S)
            return given

        job = run(report=True, redact=redact, heartbeat_interval_s=1000)
        began_s = time.monotonic()
        closed = job.close(timeout_s=0.5)
        took_s = time.monotonic() - began_s
        never.set()

        assert not closed
        assert took_s < 5.0
        assert re.search(
            r"nothing that is known; EventLog was not done in time with \d+ events;", capsys.readouterr().err
        )

    def test_from_a_heartbeat(self, run, bus):
        """A plain callable that gets a heartbeat, on the heartbeat thread, may end the job."""
        ended, done = [], threading.Event()

        def end(_beat):
            is_first = job.is_open  # there is one more heartbeat as it closes
            ended.append(job.close())
            if is_first:
                done.set()

        job = run(heartbeat_interval_s=0.01)
        bus.subscribe(end, to=Heartbeat)
        assert done.wait(DEADLINE_S)

        assert set(ended) == {True}
        assert len(recorded(job, SourceEnded)) == 1

    def test_interrupted(self, run, bus):
        """A second close() does the rest of one that the program's signal handler interrupted: nothing is lost."""

        class Interrupted:
            """A frame sink that keeps nothing."""

            def open(self, source):
                pass

            def accept(self, frame, *, events):
                return True

            def after_fork(self, source):
                return False

            def flush(self, timeout_s):
                return True

            def close(self, timeout_s):
                interrupt()
                return True

        with interrupting_once() as interrupt:
            job = run(handlers=[Interrupted()])
            bus.log(Said(text="last"))
            with pytest.raises(Interruption):
                job.close(timeout_s=DEADLINE_S)
            assert (job.is_open, job.close(timeout_s=DEADLINE_S), job.is_open) == (True, True, False)
        assert [said.text for said in recorded(job, Said)] == ["last"]
        assert len(recorded(job, SourceEnded)) == len(recorded(job, SourceStarted)) == 1
        assert bus.is_idle

    @pytest.mark.hang_guard(120)
    def test_interrupted_anywhere(self, run, bus):
        """The same at random moments, again and again."""
        with interrupter() as handler:
            for number in range(12):
                job = run(heartbeat_interval_s=1000.0)
                bus.log(Said(text=str(number)))
                outcome = handler.interrupt(lambda: job.close(timeout_s=DEADLINE_S), 3, 0.004)  # noqa: B023
                assert outcome.came == outcome.raised
                assert job.close(timeout_s=DEADLINE_S)
                assert bus.is_idle
        assert [said.text for said in recorded(job, Said)] == [str(number) for number in range(12)]
        assert len(recorded(job, SourceEnded)) == 12

    def test_by_two(self, run, bus, capsys):
        """Of two threads that close a job one does, and one summary is printed."""
        job = run(report=True)
        threads = [threading.Thread(target=job.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)

        assert capsys.readouterr().err.count("lost      nothing") == 1

    def test_at_exit(self, tmp_path):
        """A job that is not closed is closed at exit, with its last events, windows and the summary."""
        program = """
            import sys, trackside
            from trackside import Event, event

            @event("test.start.said")
            class Said(Event):
                text: str = ""

            trackside.start(sys.argv[1])
            trackside.log(Said(text="last"))
            trackside.counter("x").add(1)
        """
        _, err = in_child(program, tmp_path)
        events = list(replay(tmp_path))

        assert [said.text for said in events if isinstance(said, Said)] == ["last"]
        assert [window.count for window in events if isinstance(window, CounterWindow)] == [1]
        assert events[-1].reason == "exit"
        assert "lost      nothing" in err

    def test_open_spans(self, tmp_path):
        """A heartbeat says which spans are open, so that after a crash the last open ones are known."""
        program = """
            import json, sys, trackside
            from trackside.events import Heartbeat
            from trackside.instruments import span

            from trackside.testing import Capture
            beats = Capture()
            trackside.subscribe(beats, to=Heartbeat)
            job = trackside.start(sys.argv[1], report=False, heartbeat_interval_s=1000)
            with span("outer"), span("inner") as inner:
                job.close()
            print(json.dumps([beats.events[-1].open_spans, [inner.id, "inner", inner.start_ns]]))
        """
        out, _ = in_child(program, tmp_path)
        reported, expected = json.loads(out)

        assert reported == {"MainThread": expected}

    def test_default_bus(self, tmp_path):
        """The module's own functions are what a job records unless it is given another bus."""
        program = """
            import json, sys, trackside
            from trackside import Event, event

            @event("test.start.said")
            class Said(Event):
                text: str = ""

            with trackside.start(sys.argv[1], report=False) as job:
                trackside.log(Said(text="a"))
            print(json.dumps([said.text for said in trackside.replay(job.directory, to=Said)]))
        """
        out, _ = in_child(program, tmp_path)

        assert json.loads(out) == ["a"]


class TestFork:
    def test_child_has_its_own_file(self, tmp_path):
        """A forked child logs to a file of its own, as a worker with its parent's id; the job stays the parent's."""
        program = """
            import os, sys, trackside
            from trackside import Event, event

            @event("test.start.said")
            class Said(Event):
                text: str = ""

            job = trackside.start(sys.argv[1], report=False)
            trackside.log(Said(text="parent, before"))
            child = os.fork()
            if child == 0:
                trackside.log(Said(text="child"))
                assert not job.is_open
                job.close()
                trackside.close()
                os._exit(0)
            os.waitpid(child, 0)
            trackside.log(Said(text="parent, after"))
            job.close()
            print(job.source.id)
        """
        out, _ = in_child(program, tmp_path)
        said = list(replay(tmp_path, to=Said))
        by_source = {}
        for given in said:
            by_source.setdefault(given.source, []).append(given.text)
        parent, child = sorted(by_source, key=lambda source: source.role)

        assert by_source == {parent: ["parent, before", "parent, after"], child: ["child"]}
        assert (parent.role, child.role) == ("main", "worker")
        assert child.parent.source_id == parent.id == out.strip()

    def test_job_of_its_own(self, tmp_path):
        """A forked child may turn on telemetry of its own; then its events are there, and not with the parent's."""
        program = """
            import os, sys, trackside
            from trackside import Event, event

            @event("test.start.said")
            class Said(Event):
                text: str = ""

            job = trackside.start(sys.argv[1] + "/parent", report=False)
            child = os.fork()
            if child == 0:
                with trackside.start(sys.argv[1] + "/child", report=False):
                    trackside.log(Said(text="child"))
                os._exit(0)
            os.waitpid(child, 0)
            trackside.log(Said(text="parent"))
            job.close()
        """
        in_child(program, tmp_path)

        assert [said.text for said in replay(tmp_path / "child", to=Said)] == ["child"]
        assert [said.text for said in replay(tmp_path / "parent", to=Said)] == ["parent"]


@pytest.fixture(autouse=True)
def own_identity():
    """Keep each test's identity from the next."""
    yield
    set_process_source(None)


class TestRankThatIsOff:
    def test_nothing_is_written(self, tmp_path):
        """On a rank that does not take part nothing is subscribed, started or written."""
        bus = trackside.Bus()
        config = trackside.JobConfig(application_name="charlm", enable_for_current_rank=False)

        with trackside.start(tmp_path / "runs", job=config, bus=bus) as job:
            assert bus.is_idle
            assert not bus.wants(trackside.IterationEnded)
            assert job.directory is None

        assert not (tmp_path / "runs").exists()

    def test_configuration_is_recorded_where_it_is_on(self, tmp_path):
        """On a rank that takes part the job's configuration is in the log."""
        config = trackside.JobConfig(application_name="charlm", session_tag="s1")

        with trackside.start(tmp_path / "runs", job=config, bus=trackside.Bus(), report=False):
            pass

        (source,) = trackside.check_logs(tmp_path / "runs").sources
        assert (source.source.application, source.source.session_tag) == ("charlm", "s1")
        assert source.by_type["trackside.job.configured"] == 1


TWO_JOBS = """
import sys, time
began = time.monotonic()
import trackside
jobs = []
for _ in range(2):
    before_s = time.monotonic() - began
    with trackside.start(sys.argv[1], report=False) as job:
        print(before_s, job.source.before_start_s)
"""


STEPS_OF_TWO_JOBS = """
import sys
import trackside
for directory in sys.argv[1:]:
    with trackside.start(directory, report=False):
        for _ in range(2):
            with trackside.training_iteration():
                pass
    print([ended.step for ended in trackside.replay(directory, to=trackside.IterationEnded)])
"""


def test_steps_of_two_jobs(tmp_path):
    """Iterations without numbers are counted from 0 in each of two runs of one process."""
    printed, _ = in_child(STEPS_OF_TWO_JOBS, tmp_path / "first", tmp_path / "second")
    assert printed.splitlines() == ["[0, 1]", "[0, 1]"]


SECTIONS_OF_TWO_JOBS = """
import sys
import trackside
from trackside.events import SectionWindow, clock
forward = trackside.section("forward")
for directory in sys.argv[1:]:
    before_ns = clock.now_ns()
    with trackside.start(directory, report=False):
        for step in range(2):
            with trackside.training_iteration(step), forward:
                pass
    (window,) = trackside.replay(directory, to=SectionWindow)
    print(window.counts, window.start_ns >= before_ns)
"""


def test_sections_of_two_jobs(tmp_path):
    """A section made before a job is timed from its first step on, in a window that begins with the job."""
    printed, _ = in_child(SECTIONS_OF_TWO_JOBS, tmp_path / "first", tmp_path / "second")
    assert printed.splitlines() == ["[2] True", "[2] True"]


def test_steps_of_two_jobs_of_a_run(tmp_path):
    """In a second job of the same run they go on: else its steps would look like those of the first, done again."""
    same_run = 'import os\nos.environ.update(RANK="0", WORLD_SIZE="1", TORCHELASTIC_RUN_ID="r1")\n'
    printed, _ = in_child(same_run + STEPS_OF_TWO_JOBS, tmp_path / "first", tmp_path / "second")
    assert printed.splitlines() == ["[0, 1]", "[2, 3]"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the age of a process is not known")
def test_before_start(tmp_path):
    """A source says how long its process had run when its first job was started; at a second one it does not know."""
    began = time.monotonic()
    printed, _ = in_child(TWO_JOBS, tmp_path)
    took_s = time.monotonic() - began
    (within_s, first_s), (_, second_s) = (map(float, line.split()) for line in printed.splitlines())
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert within_s <= first_s <= took_s + tick_s
    assert second_s == 0

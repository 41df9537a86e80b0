from __future__ import annotations

import contextlib
import functools
import math
import secrets
import shutil
import subprocess
import sys
import time

import pytest

from trackside.bus import Bus
from trackside.cli import main
from trackside.events import ConfigError, ControlUsed, IterationEnded, Source, UnreadableError
from trackside.handlers.zeromq import VERBS, EndpointFile
from trackside.handlers.zeromq import command as command_within
from trackside.handlers.zeromq._connection import Connection, Safety
from trackside.handlers.zeromq._control import is_target, may_command
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    VIEWER_END,
    Hello,
    Refused,
    Result,
    Verb,
    Welcome,
    decode,
    encode,
)
from trackside.job import Remote, RemoteAccess

pytestmark = pytest.mark.once

STEP = "test.step.taken"
command = functools.partial(command_within, timeout_s=100)  # an answer takes as long as the machine is busy


@pytest.fixture
def viewing(keys, tmp_path):
    """Give a directory with the keys of a viewer."""
    directory = tmp_path / "viewing"
    directory.mkdir(mode=0o700)
    for name in ("viewer.1.secret", "viewer.1.public", "server.1.public"):
        shutil.copy2(keys / name, directory)
    return directory


def say_verb(endpoint, verb, **options):
    """Send *verb* as a peer that ignores its own permissions; return the answer."""
    connection = Connection(endpoint, binds=False, role="viewer", **options)
    try:
        connection.send(b"", encode(Hello(PROTOCOL_VERSION, VIEWER_END, secrets.token_hex(8), "")))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            connection.wait(0.1)
            for _, parts, _ in connection.receive(10):
                message = decode(parts)
                if isinstance(message, Welcome):
                    connection.send(b"", encode(Verb(1, verb, [], {})))
                elif isinstance(message, (Result, Refused)):
                    return message
        return None
    finally:
        connection.close()


class TestWhoMay:
    @pytest.mark.parametrize(
        ("safety", "user", "expected"),
        [
            (Safety.PRIVATE, "", True),
            (Safety.KEYED, "control:0123abcd", True),
            (Safety.KEYED, "viewer:0123abcd", False),
            (Safety.KEYED, "rank:0123abcd", False),
            (Safety.KEYED, "", False),
            (Safety.INSECURE, "", False),
            (Safety.INSECURE, "control:0123abcd", False),
        ],
    )
    def test_table(self, safety, user, expected):
        """
        Only the control key may command over TCP, and only this user over a socket of theirs.
        """
        assert may_command(safety, user) is expected

    @pytest.mark.integration
    def test_viewing_key_is_refused(self, jobs, keys, viewing):
        """A viewer that sends a verb all the same gets a refusal, and the verb has no effect."""
        job = jobs(publish="tcp://127.0.0.1:*", keys=str(keys))
        job.log(count=1)

        answer = say_verb(job.endpoint, "pause", keys=viewing)

        assert (answer.done, "control key" in answer.values["error"]) == (False, True)
        assert job.log(count=5) == 6
        assert job.stats()["published"] >= 6

    @pytest.mark.integration
    def test_insecure_endpoint_takes_no_verb(self, jobs):
        """Without keys no peer may command."""
        job = jobs(publish="tcp://127.0.0.1:*", insecure=True)

        answer = say_verb(job.endpoint, "status", insecure=True)

        assert isinstance(answer, Refused) or not answer.done

    def test_command_does_not_try_without_keys(self):
        """
        Asking over TCP without keys is an error of configuration.
        """
        with pytest.raises(ConfigError, match="keys"):
            command("tcp://127.0.0.1:1", "status")

    def test_unknown_verb(self):
        """An unknown verb is refused with a list of the known ones."""
        with pytest.raises(ConfigError, match="status, priority, sample, pause, resume, flush"):
            command("ipc:///tmp/x", "exec")

    def test_nobody_there(self, socket_directory):
        """
        An endpoint that does not answer is reported as such, in time.
        """
        with pytest.raises(UnreadableError, match="no answer"):
            command(f"ipc://{socket_directory}/none", "status", timeout_s=0.3)

    @pytest.mark.parametrize("timeout_s", [0, -1.0, math.inf, math.nan])
    def test_waits_for_no_time(self, timeout_s):
        """A time to wait is above 0 and finite."""
        with pytest.raises(ConfigError, match="give seconds above 0"):
            command("ipc:///x", "status", timeout_s=timeout_s)


class TestOneJob:
    @pytest.mark.integration
    def test_status(self, jobs):
        """A job reports how many events it published, and that nothing is restricted."""
        job = jobs()
        job.log(count=42)

        (outcome,) = command(job.endpoint, "status")

        assert (outcome.done, outcome.values["paused"], outcome.values["min_priority"]) == (True, False, "PROFILE")
        assert outcome.values["published"] >= 42

    @pytest.mark.integration
    def test_pause_and_resume(self, jobs):
        """While paused, only events of the highest priority are recorded; afterwards all are again."""
        job = jobs()
        job.log(count=1)
        before = job.stats()["published"]
        command(job.endpoint, "pause")
        job.log(count=10)
        job.note(count=1)
        paused = job.stats()["published"]
        command(job.endpoint, "resume")
        job.log(count=10)

        assert paused - before == 1 + 1  # the noted event, and the event that pause was used
        assert job.stats()["published"] - paused == 10 + 1

    @pytest.mark.integration
    def test_pause_ends_by_itself(self, jobs, until):
        """A pause with a duration ends by itself, even if its requester has gone."""
        job = jobs()
        (paused,) = command(job.endpoint, "pause", {"seconds": 0.3})

        def is_recorded():
            before = job.stats()["published"]
            job.log(count=10)
            return job.stats()["published"] - before >= 10

        until(is_recorded)

        (status,) = command(job.endpoint, "status")
        assert (paused.done, status.values["paused"]) == (True, False)

    def test_sample(self, jobs):
        """
        One step of ten is recorded, the same on every rank.
        """
        job = jobs()
        command(job.endpoint, "sample", {"every": 10})
        job.log(count=0)  # so that the verb's own event is through
        before = job.stats()["published"]

        job.log(count=100)

        assert job.stats()["published"] - before == 10

    @pytest.mark.integration
    def test_min_priority(self, jobs):
        """
        With min_priority at LIFECYCLE iterations are left out.
        """
        job = jobs()
        command(job.endpoint, "priority", {"level": "LIFECYCLE"})
        job.log(count=0)  # so that the verb's own event is through
        before = job.stats()["published"]

        job.log(count=100)

        assert job.stats()["published"] == before

    @pytest.mark.integration
    @pytest.mark.parametrize(
        ("verb", "arguments"),
        [
            ("priority", {"level": "EVERYTHING"}),
            ("priority", {}),
            ("sample", {"every": 0}),
            ("sample", {"every": 1.5}),
            ("sample", {"every": 10, "seconds": -1}),
            ("pause", {"seconds": "long"}),
        ],
    )
    def test_wrong_arguments(self, jobs, verb, arguments):
        """Invalid arguments change nothing, and the answer names the valid ones."""
        job = jobs(models=False)

        (outcome,) = command(job.endpoint, verb, arguments)

        assert not outcome.done
        assert "error" in outcome.values
        assert command(job.endpoint, "status")[0].values["every"] == 1


@pytest.mark.integration
class TestAllRanks:
    def test_through_collector_and_forwarder(self, collectors, forwarders, jobs, until, keys):
        """
        A verb reaches ranks at the collector and behind a forwarder; each use is an event in each stream.
        """
        collector = collectors(publish="tcp://127.0.0.1:*", keys=keys)
        forwarder = forwarders(collector.endpoint, keys=keys)
        for rank, endpoint in enumerate((collector.endpoint, forwarder.endpoint, forwarder.endpoint)):
            jobs(publish=False, collector=endpoint, keys=str(keys), rank=rank, models=False).log(count=5)
        until(lambda: len(collector.heard(STEP)) == 15)

        outcomes = command(collector.viewer_endpoint, "flush", keys=keys)

        assert sorted(outcome.values["rank"] for outcome in outcomes if "rank" in outcome.values) == [0, 1, 2]
        assert all(outcome.done for outcome in outcomes)
        until(lambda: len({event.source.id for event in collector.heard(ControlUsed)}) == 5)
        own = collector.heard(ControlUsed, collector.streams.own.source.id)
        assert own[0].by.startswith("control:")

    def test_one_rank(self, collectors, jobs, until, keys):
        """A verb for one rank reaches only that one."""
        collector = collectors(publish="tcp://127.0.0.1:*", keys=keys)
        for rank in range(2):
            jobs(publish=False, collector=collector.endpoint, keys=str(keys), rank=rank, models=False).log(count=5)
        until(lambda: len(collector.heard(STEP)) == 10)

        outcomes = command(collector.viewer_endpoint, "status", targets=["rank:1"], keys=keys)

        assert [outcome.values["rank"] for outcome in outcomes if "rank" in outcome.values] == [1]

    def test_sixty_four_ranks(self, collectors, socket_directory, until):
        """
        All of 64 ranks answer a verb (E17).
        """
        collector = collectors(bind=f"ipc://{socket_directory}/ranks", publish=f"ipc://{socket_directory}/viewers")
        with contextlib.ExitStack() as stack:
            for rank in range(64):
                source = Source.detect({}, rank=rank, run_id="test")
                bus = Bus(source=source)
                stack.callback(bus.close)
                config = Remote(collector=collector.endpoint)
                remote = RemoteAccess(config, bus=bus, source=source, directory=socket_directory)
                stack.callback(remote.close, 0.0)
                bus.log(IterationEnded(duration_ns=1, step=0))
            until(lambda: collector.totals()["sources"] == 64)

            start = time.monotonic()
            outcomes = command(collector.viewer_endpoint, "pause")
            print(f"64 ranks answered within {time.monotonic() - start:.2f} s")

        assert sorted(one.values["rank"] for one in outcomes if "rank" in one.values) == list(range(64))
        assert all(one.done for one in outcomes)

    def test_viewing_key(self, collectors, keys, viewing, until):
        """A viewer's key may not command at a collector; the attempt is an event."""
        collector = collectors(publish="tcp://127.0.0.1:*", keys=keys)

        answer = say_verb(collector.viewer_endpoint, "pause", keys=viewing)

        assert not answer.done
        until(lambda: collector.heard(ControlUsed))
        recorded = collector.heard(ControlUsed)[0]
        assert (recorded.done, recorded.by.startswith("viewer:")) == (False, True)

    @pytest.mark.parametrize(
        ("targets", "expected"), [([], True), (["rank:3"], True), (["a"], True), (["rank:4", "b"], False)]
    )
    def test_targets(self, targets, expected):
        """A source is selected by its id, by its rank, or by default."""
        assert is_target("a", 3, targets) is expected


@pytest.mark.integration
class TestCommandLine:
    @pytest.mark.parametrize("by", ["endpoint", "directory"])
    def test_says_what_each_said(self, jobs, tmp_path, by):
        """The command prints a line for each source, at an endpoint or in a directory that jobs write to."""
        job = jobs(rank=3)
        EndpointFile(tmp_path, Source(rank=3), job.endpoint)
        code = "import sys; from trackside.cli import main; sys.exit(main(sys.argv[1:]))"

        ended = subprocess.run(
            [sys.executable, "-c", code, "ctl", job.endpoint if by == "endpoint" else tmp_path, "sample", "7"],
            capture_output=True,
            text=True,
            check=False,
        )

        assert (ended.returncode, ended.stdout.split()) == (0, ["rank", "3", "done", "every=7"])

    def test_rank_of_a_directory(self, jobs, tmp_path, capsys):
        """Of the jobs that write to a directory, the one with the rank does what is asked; the other is no failure."""
        for rank in (1, 3):
            EndpointFile(tmp_path, Source(rank=rank), jobs(rank=rank).endpoint)

        assert main(["ctl", str(tmp_path), "sample", "7", "--ranks", "3", "--timeout", "15"]) == 0

        assert capsys.readouterr().out.split() == ["rank", "3", "done", "every=7"]

    def test_verbs_are_these(self):
        """
        The list of verbs is fixed.
        """
        assert VERBS == ("status", "priority", "sample", "pause", "resume", "flush")

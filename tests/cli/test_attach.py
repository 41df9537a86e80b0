"""``trackside attach``."""

from __future__ import annotations

import json
import threading

import pytest

import trackside
from trackside.cli._main import main

pytestmark = pytest.mark.once


@trackside.event("attach.step.taken")
class StepTaken(trackside.Event):
    """An event."""

    number: int


@pytest.fixture
def job(socket_directory, tmp_path):
    """Give a job that publishes, and logs ten events as soon as a viewer wants them."""
    with (
        trackside.Bus() as bus,
        trackside.start(tmp_path / "run", bus=bus, remote=trackside.Remote(publish=True), report=False) as job,
    ):
        thread = threading.Thread(target=log_ten, args=(bus, job))
        thread.start()
        yield job
        thread.join()


def wait_for_viewer(job):
    while not job.is_watched and job.is_open:
        threading.Event().wait(0.01)


def close_once_watched(job):
    wait_for_viewer(job)
    job.close()


def log_ten(bus, job):
    wait_for_viewer(job)
    for number in range(10):
        bus.log(StepTaken(number=number))
    bus.flush()


class TestAttach:
    def test_lines(self, job, capsys):
        """Events are printed as lines, and the watched job is named on stderr."""
        assert main(["attach", str(job.directory), "--type", "attach.*", "-n", "10"]) == 0
        printed = capsys.readouterr()
        assert printed.out.count("attach.step.taken") == 10
        assert "watching" in printed.err

    def test_type_as_shown(self, job, capsys):
        """A type is chosen by the word that the lines show for it."""
        threading.Thread(target=close_once_watched, args=(job,)).start()
        assert main(["attach", *job.endpoints, "-t", "heartbeat", "--json"]) == 0
        types = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
        assert "trackside.heartbeat" in types
        assert "trackside.counter.window" not in types

    def test_json(self, job, capsys):
        """With --json events are printed as JSON."""
        assert main(["attach", *job.endpoints, "-t", "attach.*", "-n", "3", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["fields"]["number"] for line in lines] == [0, 1, 2]

    def test_until_the_end(self, job, capsys):
        """The command ends when the job does."""
        threading.Thread(target=close_once_watched, args=(job,)).start()
        assert main(["attach", *job.endpoints, "--min-priority", "lifecycle"]) == 0
        assert "source.ended" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("endpoint", "message"),
        [
            ("tcp://127.0.0.1:9", "or insecure=True (--insecure)"),
            ("nowhere/at/all", "no directory and no endpoint"),
            ("ipc:///nowhere/at/all", "is the job running"),
            ("http://x", "ipc:///directory/name or tcp://host:port"),
        ],
    )
    def test_wrong(self, endpoint, message, capsys):
        """A target that cannot be attached to is one line with the error and the right form; the exit code is 2."""
        assert main(["attach", endpoint]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line

    def test_nobody_there(self, socket_directory, capsys):
        """A directory in which no job publishes is named as such."""
        assert main(["attach", str(socket_directory)]) == 2
        assert "start it with remote=Remote(publish=True)" in capsys.readouterr().err

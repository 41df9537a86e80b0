"""Uncaught exceptions, in real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trackside
from trackside.events import ExceptionRaised, SourceEnded

BEGIN = """
import sys, threading
import trackside
"""
BY_FRAMEWORK = """
from trackside.integrations._auto_start import AutoStart
AutoStart(sys.argv[1], None, ()).begin(rank=0, local_rank=0, world_size=1)
"""
BLOCK = "with trackside.start(sys.argv[1], report=False): "


def run(tmp_path, program):
    """Run *program* with a log below *tmp_path*; return what it printed and the events of its log."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, str(tmp_path / "runs")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done, list(trackside.replay(tmp_path / "runs"))


def raised(events):
    return [(event.type, event.message, event.span_name) for event in events if isinstance(event, ExceptionRaised)]


def reasons(events):
    return [event.reason for event in events if isinstance(event, SourceEnded)]


@pytest.mark.hang_guard(120)
class TestProgram:
    def test_uncaught(self, tmp_path):
        """An exception that ends the program is recorded, and named as the reason of its end."""
        done, events = run(tmp_path, "trackside.start(sys.argv[1], report=False)\nraise ValueError('bad batch')")
        assert raised(events) == [("ValueError", "bad batch", "")]
        assert reasons(events) == ["ValueError"]
        assert done.returncode == 1

    @pytest.mark.parametrize("begin", ["trackside.start(sys.argv[1], report=False)\n", BLOCK, BY_FRAMEWORK])
    def test_exit(self, tmp_path, begin):
        """A program that ends itself with a status of failure has no good end."""
        done, events = run(tmp_path, begin + "sys.exit(3)")
        assert raised(events) == [("SystemExit", "3", "")]
        assert reasons(events) == ["SystemExit"]
        assert done.returncode == 3

    @pytest.mark.parametrize(
        ("before", "call"), [("", "exit"), ("", "quit"), ("from sys import exit as leave", "leave")]
    )
    def test_exit_otherwise(self, tmp_path, before, call):
        """So it is by whichever name the program's main module calls it, imported before the start, too."""
        done, events = run(tmp_path, f"{before}\ntrackside.start(sys.argv[1], report=False)\n{call}(3)")
        assert raised(events) == [("SystemExit", "3", "")]
        assert done.returncode == 3

    def test_exit_with_success(self, tmp_path):
        """A program that leaves the block of start() by sys.exit(0) has a good end."""
        _, events = run(tmp_path, BLOCK + "sys.exit(0)")
        assert raised(events) == []
        assert reasons(events) == ["closed"]

    def test_exit_that_was_caught(self, tmp_path):
        """Of several calls of sys.exit() the last one counts: the others did not end the program."""
        program = """
trackside.start(sys.argv[1], report=False)
try:
    sys.exit(2)
except SystemExit:
    sys.exit()
"""
        _, events = run(tmp_path, program)
        assert raised(events) == []
        assert reasons(events) == ["exit"]

    def test_went_on(self, tmp_path):
        """A program that catches sys.exit(2), and comes to the end of the block of start(), has a good end."""
        program = """
with trackside.start(sys.argv[1], report=False):
    try:
        sys.exit(2)
    except SystemExit:
        pass
"""
        _, events = run(tmp_path, program)
        assert raised(events) == []
        assert reasons(events) == ["closed"]

    def test_prints_the_same(self, tmp_path):
        """The program prints what it would print without telemetry."""
        script = "def f():\n    raise ValueError('bad batch')\n"
        done, _ = run(tmp_path, f"trackside.start(sys.argv[1], report=False)\n{script}f()")
        bare, _ = run(tmp_path, f"\n{script}f()")
        assert done.stderr == bare.stderr
        assert done.stdout == bare.stdout == ""

    def test_left_a_span(self, tmp_path):
        """An exception that left spans before is not recorded again."""
        program = "trackside.start(sys.argv[1], report=False)\nwith trackside.span('load'): raise ValueError('bad')"
        _, events = run(tmp_path, program)
        assert raised(events) == [("ValueError", "bad", "load")]
        assert reasons(events) == ["ValueError"]

    def test_left_the_block(self, tmp_path):
        """An exception that leaves the block of start() is recorded once."""
        _, events = run(tmp_path, "with trackside.start(sys.argv[1], report=False): raise ValueError('bad')")
        assert raised(events) == [("ValueError", "bad", "")]
        assert reasons(events) == ["ValueError"]

    def test_hook_of_the_program(self, tmp_path):
        """The program's own hook is called with its usual arguments."""
        hook = "sys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, error)\n"
        done, events = run(tmp_path, f"{hook}trackside.start(sys.argv[1], report=False)\nraise ValueError('bad')")
        assert (done.stdout, done.stderr) == ("hook ValueError bad\n", "")
        assert raised(events) == [("ValueError", "bad", "")]

    def test_hooks_afterwards(self, tmp_path):
        """Turning telemetry off restores the hooks."""
        program = """
import cattrs  # on Python 3.10 its dependency exceptiongroup has a hook of its own
from sys import exit as leave
before = sys.excepthook, threading.excepthook, sys.exit, exit, quit, leave
trackside.start(sys.argv[1], report=False).close()
print(before == (sys.excepthook, threading.excepthook, sys.exit, exit, quit, leave))
"""
        done, _ = run(tmp_path, program)
        assert done.stdout == "True\n"

    def test_thread(self, tmp_path):
        """An exception that ends a thread is recorded; the program goes on to a good end."""
        program = """
def work():
    raise KeyError("lost")
with trackside.start(sys.argv[1], report=False):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
        done, events = run(tmp_path, program)
        assert raised(events) == [("KeyError", "'lost'", "")]
        assert reasons(events) == ["closed"]
        assert "KeyError" in done.stderr

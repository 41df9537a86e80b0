"""``trackside top`` where there is no terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

from trackside.cli import _top, main


@pytest.mark.parametrize("option", ["--plain", "--json"])
def test_ends_with_the_job(option, start, tmp_path, write_log):
    """The picture that is printed into a pipe ends when the job has ended, and says so."""
    write_log(tmp_path)

    top = start("top", option, tmp_path)
    out, err = top.communicate(timeout=60)

    last = out.splitlines()[-1]
    assert (top.returncode, err) == (0, "")
    assert json.loads(last)["has_ended"] if option == "--json" else ", ended, " in last


def test_says_the_end_once(start, tmp_path, write_log):
    """The line of a job that has ended is printed once, and none is printed that says the same."""
    write_log(tmp_path)

    out, _ = start("top", "--plain", tmp_path).communicate(timeout=60)

    assert [", ended, " in line for line in out.splitlines()].count(True) == 1


def test_says_the_death_once(start, tmp_path):
    """The line of a job whose rank died is printed once, too."""
    job = """
        import os, signal, sys, trackside
        trackside.start(sys.argv[1], report=False)
        with trackside.training_iteration(step=0):
            pass
        trackside.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(job), tmp_path], check=False, timeout=60)

    out, _ = start("top", "--plain", tmp_path).communicate(timeout=60)

    assert out.count("0 of 1 rank alive") == len(out.splitlines()) == 1


def test_once_in_part(command, readable, unreadable):
    """With --once, readable files are shown, each unreadable one is a line, and the exit code is 2."""
    outcome = command("top", "--once", "--plain", unreadable, readable)

    assert (outcome.code, len(outcome.lines)) == (2, 1)
    assert "run-1: " in outcome.out
    assert outcome.err.startswith(f"trackside top: {unreadable}: is no event log;")


def test_once_unreadable(command, unreadable):
    """With --once and nothing that can be read there is no view, but a line that says why."""
    outcome = command("top", "--once", "--plain", unreadable)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_once_damaged(command, damaged):
    """With --once, damaged and missing parts are reported on stderr, and what is missing is in the view."""
    outcome = command("top", "--once", "--plain", damaged)

    assert (outcome.code, "0 lost" in outcome.out) == (0, False)
    assert "damaged byte(s) were passed over" in outcome.err


def test_waits_for_a_directory(start, tmp_path, write_log):
    """A directory that a job has not made yet is waited for, and a line says so."""
    top = start("top", "--plain", tmp_path / "later")
    said = top.stderr.readline()
    write_log(tmp_path / "later")
    out, _ = top.communicate(timeout=60)

    assert said == f"trackside top: waiting for {tmp_path}/later, which does not exist yet\n"
    assert ", ended, " in out.splitlines()[-1]


def test_leaves_no_thread(tmp_path, write_log, capsys):
    """Its reader of the log ends with the command."""
    write_log(tmp_path)
    before = set(threading.enumerate())

    assert main(["top", "--plain", str(tmp_path)]) == 0

    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("terminal", "is_drawn"), [("xterm-256color", True), ("dumb", False)])
def test_dumb_terminal(terminal, is_drawn, monkeypatch):
    """Lines are printed on a terminal that cannot place them, as the shells of some editors are."""
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert _top._can_draw() is is_drawn

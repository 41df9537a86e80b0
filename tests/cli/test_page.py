"""The page on the command line shows what the commands print."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.cli._main import build_parser

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SAMPLES = dict(re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL))

# Commands about jobs that run, or about events that the page's job does not write: other pages show them.
SHOWN_ELSEWHERE = {"archive", "attach", "collect", "ctl", "forward", "import", "run"}

# The parts that differ from run to run: times, durations, ids of processes, all other numbers, and their pictures.
MASKS = (
    (r"\[#*\.*\]", "BAR"),
    (r"(ranks: 2; ).*", r"\1RANK"),
    (r"\d+-\d+-\d+ \d+:\d+:\d+\.\d+Z|\d+:\d+:\d+\.\d+Z", "TIME"),
    (r"\b[\d.]+ (ns|µs|ms|s|min|h)\b", "DURATION"),
    (r"\.[0-9a-f]{8}\.", ".ID."),
    (r"\d[\d.,]*", "N"),
    (r"[-+](?=N)", "±"),  # a value near zero may be on either side of it
    (r".*\.( report\.html says more)", r"VERDICT\1"),  # on a busy machine another cause may cost most
    (r"core (pure|compiled)", "core CORE"),
    (r" +", " "),
)


def masked(text):
    """Return the lines of *text* without the parts that differ from run to run; equal counts come in any order."""
    host = socket.gethostname()
    text = re.sub(rf"(?<!\w)({re.escape(host)}|{re.escape(host[:16])})(?!\w)", "node-1", text)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The buckets of goodput that have anything in them depend on how fast the machine is.
    lines = [line for line in lines if not re.search(" % [A-Z_]+$", line)]
    return sorted(line for line in lines if line.startswith("goodput ") or not line.endswith(" pt"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Run the page's job in the directory and with the two ranks that the page names."""
    directory = tmp_path_factory.mktemp("page")
    (directory / "train.py").write_text(PROGRAM)
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=directory,
            env={**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"},
            stderr=subprocess.DEVNULL,
        )
        for rank in "01"
    ]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    return directory


class TestPage:
    def test_every_command(self):
        """Each command has a sample, except those that take a running job."""
        (commands,) = (action.choices for action in build_parser()._actions if action.dest == "command")

        assert {shlex.split(line)[1] for line in SAMPLES} | SHOWN_ELSEWHERE == set(commands)

    @pytest.mark.parametrize("line", SAMPLES)
    def test_sample(self, line, directory, command, monkeypatch):
        """A sample equals the output of its command for the page's job, except times and other numbers."""
        monkeypatch.chdir(directory)
        outcome = command(*shlex.split(line)[1:])

        assert (outcome.code, outcome.err) == (0, "")
        assert masked(outcome.out) == masked(SAMPLES[line])

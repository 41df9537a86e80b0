"""Closing and exiting take two seconds at most, whichever handler blocks, and say how many events were lost."""

from __future__ import annotations

import concurrent.futures
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "exiting.py"
CLOSE_S, EXIT_S = 2.0, 2.5
GENEROUS = 5  # the factor by which a busy machine may be slower

# The part that blocks, and how many of a thousand events are lost: the event at which the handler blocks is lost as
# well.
STUCK = {"nothing": [], "sink_worker": [1000], "fifo": [1000], "dispatcher": [1000]}
ENDS = {"end": (0, ""), "terminated": (3, ""), "thread": (0, ""), "exception": (1, "ValueError: the end")}
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
AT_ONCE = 9  # they do little but wait


class Ending:
    """Starts the script and waits for its end."""

    def __init__(self, way, stuck):
        self.way = way
        self.stuck = stuck
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(SCRIPT), way, stuck],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.began_s = self.printed = float(self.process.stdout.readline())
        if way == "interrupted":
            self.interrupt()
        try:
            out, self.err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        assert out == ""
        self.took_s = time.monotonic() - self.began_s

    def interrupt(self):
        """Press Ctrl-C twice, the second time while the bus is being closed."""
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.readline()  # two at once would count as one
        time.sleep(0.5)
        self.was_waiting = self.process.poll() is None
        self.process.send_signal(signal.SIGINT)
        self.began_s = time.monotonic()

    @property
    def lost(self):
        """Return the numbers of lost events that it reported."""
        return [int(count) for count in re.findall(r"^lost (\d+) event\(s\)", self.err, re.MULTILINE)]


@pytest.fixture(scope="module")
def endings():
    """Let every program end in every way, several at once, and return the outcomes."""
    wanted = [(way, stuck) for way in (*ENDS, "closed") for stuck in STUCK]
    if not FREE_THREADED:
        wanted += [("interrupted", stuck) for stuck in ("sink_worker", "fifo", "dispatcher")]
    wanted += [("end", "sink_worker at the last moment")]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(lambda one: Ending(*one), wanted), strict=True))


class TestClose:
    @pytest.mark.parametrize("stuck", STUCK)
    def test_bounded(self, endings, stuck):
        """close() returns within two seconds, and a line says exactly how many events were lost."""
        ending = endings["closed", stuck]
        assert ending.printed < CLOSE_S * GENEROUS
        assert ending.process.returncode == 0
        assert ending.lost == STUCK[stuck]

    def test_waits(self, endings):
        """With a blocked handler close() waits for most of the two seconds: the handler may return."""
        assert endings["closed", "sink_worker"].printed > 1.0

    def test_does_not_wait(self, endings):
        """Without one it does not wait."""
        assert endings["closed", "nothing"].printed < 1.0


class TestExit:
    @pytest.mark.parametrize("stuck", STUCK)
    @pytest.mark.parametrize("way", ENDS)
    def test_bounded(self, endings, way, stuck):
        """After any end the program is gone in time, with its own exit code and a line on the loss."""
        code, said = ENDS[way]
        ending = endings[way, stuck]
        assert ending.took_s < EXIT_S * GENEROUS
        assert ending.process.returncode == code
        assert said in ending.err
        assert ending.lost == STUCK[stuck]

    def test_first_events_at_the_last_moment(self, endings):
        """A handler that never returns cannot keep the interpreter, though its first event comes at the last moment."""
        ending = endings["end", "sink_worker at the last moment"]
        assert ending.took_s < EXIT_S * GENEROUS
        assert ending.process.returncode == 0
        assert ending.lost == [1000]

    def test_nothing_to_say(self, endings):
        """A program that lost nothing ends in silence."""
        assert endings["end", "nothing"].err == ""

    @pytest.mark.skipif(FREE_THREADED, reason="3.14.7t itself often lets no Ctrl-C interrupt a wait for a lock")
    @pytest.mark.parametrize("stuck", ["sink_worker", "fifo", "dispatcher"])
    def test_interrupted_twice(self, endings, stuck):
        """A second Ctrl-C ends the waiting at once, and the loss is reported all the same."""
        ending = endings["interrupted", stuck]
        assert ending.was_waiting
        assert ending.took_s < 25  # it would have waited for 50
        assert ending.process.returncode == -signal.SIGINT
        # The interpreter itself reports it when the second one comes while it still reports the first.
        assert ending.err.count("KeyboardInterrupt") == 1 + ("Error in sys.excepthook" in ending.err)
        assert ending.lost == STUCK[stuck]

"""The messages of `trackside collect` on stderr."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from processes import of
from trackside.cli._collect import Notices, _greet
from trackside.events import RankFellSilent, Source, StallDetected
from trackside.handlers.zeromq import Collector


def stall(text="here"):
    """Return a notice that a rank can send."""
    return of(Source(), StallDetected(at_ns=0, usual_s=1.0, stalled_s=9.0, stacks={"MainThread": text}, open_spans={}))


def silence(**given):
    """Return a notice of the collector's own."""
    event = RankFellSilent(at_ns=0, source_id="a" * 16, run_id="run", rank=3, last_heard_ns=0, silent_s=5.0, **given)
    return of(Source(role="collector"), event)


class TestNotices:
    @pytest.fixture
    def now_s(self):
        """Give a clock that a test sets."""
        return [0.0]

    @pytest.fixture
    def notices(self, now_s):
        """Give the printer, on that clock."""
        return Notices(lambda: now_s[0])

    def test_flood(self, notices, now_s, capsys):
        """Of 5,000 stalls 100 are printed at once, a second later another, with the number of those left out."""
        for _ in range(5_000):
            notices(stall())
        assert len(capsys.readouterr().err.splitlines()) == 100
        now_s[0] = 1.0
        notices(stall())
        notices(stall())
        left_out, shown = capsys.readouterr().err.splitlines()
        assert left_out == "trackside collect: 4,900 more trackside.stall.detected not shown"
        assert "trackside.stall.detected" in shown
        notices.close()
        assert capsys.readouterr().err == "trackside collect: 1 more trackside.stall.detected not shown\n"

    def test_other_types(self, notices, capsys):
        """A flood of one type hides none of another."""
        for _ in range(200):
            notices(stall())
        capsys.readouterr()
        notices(silence())
        assert "trackside.rank.silent" in capsys.readouterr().err

    def test_long(self, notices, capsys):
        """A line is cut at 1,000 characters, escapes included: 200 of four characters here are 800 of each field."""
        notices(silence(host="\x1b" * 200, span="\x1b" * 200))
        (line,) = capsys.readouterr().err.splitlines()
        assert len(line) == 1_000
        assert "\x1b" not in line


def test_read_back(socket_directory, tmp_path, write_log, capsys):
    """Of earlier logs the events of ranks are said to be read back, as in the totals at the end."""
    write_log(tmp_path / "logs", rank=0)
    write_log(tmp_path / "logs", rank=1, role="collector")
    collector = Collector(f"ipc://{socket_directory}/ranks", log=tmp_path / "logs")
    try:
        _greet(collector, SimpleNamespace(log="logs", keys=None, insecure=False))
        known = collector.totals()
    finally:
        collector.close()
    assert capsys.readouterr().out.startswith(f"read back {known['events']} events of 1 source(s) from logs\n")

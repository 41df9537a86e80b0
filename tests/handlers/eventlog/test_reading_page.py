"""The code on the page on reading logs prints the content of a job's log."""

from __future__ import annotations

import re
from pathlib import Path

from trackside.events import IterationEnded, Source
from trackside.handlers.eventlog import EventLog

PAGE = (Path(__file__).parents[3] / "docs" / "reading-logs.md").read_text(encoding="utf-8")


def test_code_runs(framed, tmp_path, monkeypatch, capsys):
    """Every hundredth iteration is printed, then the goodput and that nothing is missing or damaged."""
    source = Source(id="0123456789abcdef", rank=3)
    log = EventLog(tmp_path / "runs")
    log.open(source)
    iterations = [IterationEnded(duration_ns=1, step=step, loss=0.5, span_id=0) for step in range(101)]
    log.accept(framed(source, 0, iterations), events=101)
    assert log.close(60)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    exec(code, {})

    *steps, totals = capsys.readouterr().out.splitlines()
    assert steps == ["3 0 0.5", "3 100 0.5"]
    assert totals.split()[1:] == ["0", "0"]

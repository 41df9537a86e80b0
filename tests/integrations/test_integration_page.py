"""The page on writing an integration, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import trackside
from trackside.events import ExceptionRaised, IterationEnded, SpanEnded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write-an-integration.md"


def test_page(tmp_path):
    """The page's integration records the steps of a run, and the exception that the framework caught."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    hooks = names["TracksideHooks"](tmp_path)
    hooks.on_start(3, 8)
    for step in range(2):
        hooks.on_step_start(step)
        hooks.on_step_end(0.5)
    hooks.on_error(ValueError("bad batch"))
    hooks.on_end()
    events = list(trackside.replay(tmp_path))
    assert {event.source.rank for event in events} == {3}
    assert [(event.step, event.loss) for event in events if isinstance(event, IterationEnded)] == [(0, 0.5), (1, 0.5)]
    assert [event.message for event in events if isinstance(event, ExceptionRaised)] == ["bad batch"]
    assert [event.name for event in events if isinstance(event, SpanEnded)] == ["training_loop", "application"]

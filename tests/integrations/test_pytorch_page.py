from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import trackside
from trackside.events import IterationEnded, SpanEnded

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.torch
class TestPage:
    def test_loop(self, tmp_path):
        """The page's loop records its eight iterations of eight samples with their four parts."""
        (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "pytorch.md").read_text(encoding="utf-8"), re.DOTALL)
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, timeout=60)
        events = list(trackside.replay(tmp_path / "runs"))
        assert [event.samples for event in events if isinstance(event, IterationEnded)] == [8] * 8
        names = [event.name for event in events if isinstance(event, SpanEnded)]
        assert names == ["data_loading", "model_forward", "model_backward", "optimizer_update"] * 8

    def test_bridges(self, tmp_path):
        """The lines of the page on torch.monitor run, and the process ends well."""
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / "bridges.md").read_text(encoding="utf-8"), re.DOTALL)
        code = "\n".join(blocks)
        done = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")

"""The recipes in the documentation do as they say."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"
RECIPES = dict(
    re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)

# The code to run after each recipe, and its output.
SHOWN = {
    "Watch the process from the background": (
        """
        from trackside.events import CounterWindow

        trackside.subscribe(lambda window: print(window.name, window.count, window.unit), to=CounterWindow)
        collector = trackside.collect(interval_s=1000)
        trackside.close()
        """,
        "process.cpu 0 CPUs\nprocess.memory.peak 0 bytes\n",
    ),
    "See events as they happen": (
        """
        for step in range(201):
            trackside.log(trackside.IterationEnded(step=step, duration_ns=1, at_ns=0))
        """,
        "".join(
            f"IterationEnded(at_ns=0, span_id=0, step={step}, parent_span_id=0, kind='training', duration_ns=1,"
            " samples=None, tokens=None, flops=None, loss=None, failed=False)\n"
            for step in (0, 100, 200)
        ),
    ),
    "Keep the raw values of a stat": (
        """
        trackside.subscribe(lambda samples: print(samples.name, samples.values), to=Samples)
        for value in (3, 1, 2):
            trackside.stat("train.loss").record(value)
            trackside.stat("eval.loss").record(value)
        trackside.close()
        """,
        "train.loss [3.0, 1.0, 2.0]\n",
    ),
    "A severity of one's own": (
        """
        for severity in (1, 5):
            trackside.log(Incident(severity=severity, message="fan", at_ns=0))
        """,
        "Incident(at_ns=0, span_id=0, step=-1, severity=5, message='fan')\n",
    ),
}


class TestRecipes:
    def test_all_are_here(self):
        """Each recipe is tested."""
        assert sorted(SHOWN) == sorted(RECIPES)

    @pytest.mark.parametrize("title", RECIPES)
    def test_does_what_it_says(self, title):
        """A recipe runs as it is, and shows its result."""
        after, expected = SHOWN[title]
        program = f"{RECIPES[title]}\n{textwrap.dedent(after)}"
        child = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (child.returncode, child.stderr) == (0, "")
        assert child.stdout == expected

"""What a running job does now."""

from __future__ import annotations

import io
import json

import pytest

from trackside.handlers import replay
from trackside.views import Top, top_line

pytestmark = pytest.mark.once

S = 10**9


@pytest.fixture
def watched(made_up):
    """Give a function that returns the view of a made-up job, *later_s* after its last event."""

    def run(later_s=0.0, **job):
        top, last_ns = Top(), 0
        for event in replay(made_up(**job)):
            top.drive(event)
            last_ns = max(last_ns, event.at_ns)
        return top.view(last_ns + round(later_s * S))

    return run


class TestView:
    def test_running(self, watched):
        """Step, rate, goodput and counters are the job's: steps of 112 ms make 8.9 a second."""
        view = watched(noise=0, stumbles=0, hangs_s=1)
        assert (view.session, view.step, view.ranks, view.alive, view.has_ended) == ("made-up", 299, 4, 4, False)
        assert view.steps_per_s == pytest.approx(1 / 0.11, rel=0.01)
        assert 0.9 < view.goodput < 1
        assert [(one.name, one.level) for one in view.counters] == [("process.memory.usage", 8e9)]

    def test_ended(self, watched):
        """A job that ended has ended."""
        assert watched().has_ended

    def test_slow(self, watched):
        """A slow rank is named, with its section."""
        view = watched(factor=lambda rank, step, part: 2.0 if (rank, part) == (2, "model_forward") else 1.0)
        assert (view.worst[0].rank, "slow in section model_forward" in view.worst[0].why) == (2, True)

    def test_open(self, watched):
        """Spans that are open are there, and since when."""
        view = watched(hangs_s=5)
        assert {(one.rank, one.name) for one in view.open} >= {(2, "save_to_bucket"), (0, "waiting")}

    def test_silent(self, watched):
        """Ranks that are silent for ten seconds are not alive, and named."""
        view = watched(later_s=20, hangs_s=1)
        assert (view.alive, [one.why for one in view.worst]) == (0, ["silent for 20 s, at step 299"] * 4)

    def test_restarted(self, watched):
        """After a restart the ranks are those of the new attempt."""
        view = watched(killed_at=(130,))
        assert (view.ranks, view.step, view.has_ended) == (4, 299, True)

    def test_nothing_yet(self):
        """Before anything is heard there is nothing to show, and no error."""
        view = Top().view(S)
        assert (view.session, view.behind_s, top_line(view)) == (
            "",
            None,
            "waiting: step -1, 0 of 0 ranks alive, 0 lost",
        )

    def test_lost(self):
        """What did not get here is told."""
        top = Top()
        top.lose(7)
        assert top.view(S).lost == 7

    def test_slow_answers(self, watched, made_up):
        """An answer that takes long is asked for no more often than it can be had."""
        now_s = [0.0]

        def clock():
            now_s[0] += 1.0  # each look at the clock is a second later: the answer takes one
            return now_s[0]

        top = Top(monotonic_s=clock)
        for event in replay(made_up(ranks=1, steps=20)):
            top.drive(event)
        first = top.view(S).goodput
        top.goodput = None  # nobody asks it again for ten seconds
        assert [top.view(S).goodput for _ in range(5)] == [first] * 5

    def test_json(self, watched):
        """It is JSON."""
        assert json.loads(json.dumps(watched().to_json(), allow_nan=False))["step"] == 299


class TestScreen:
    @pytest.mark.parametrize("height", [10, 24, 50])
    def test_fits(self, watched, height):
        """It is never higher than the screen, nor wider, however much there is to tell."""
        rich = pytest.importorskip("trackside.views.rich", reason="rich is not installed in this environment")
        view = watched(ranks=40, steps=60, hangs_s=1, later_s=30)
        out = io.StringIO()
        console = rich.make_console(file=out, width=80)
        console.print(rich._top(view, 80, height))
        lines = out.getvalue().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= 80
        assert any("made-up" in line for line in lines)
        assert any(line.startswith("lost 0") for line in lines)

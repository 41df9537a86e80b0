"""The pages on writing a model, a handler and a rule, run as they are."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

import trackside
from processes import numbered
from trackside.events import DecodeError, IterationEnded, Source
from trackside.handlers import Capture
from trackside.handlers.models import DerivingModel, Model
from trackside.wire import FrameView

DOCS = Path(__file__).resolve().parents[2] / "docs"


def names_of(page):
    """Return the names that the page's code defines."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    return names


@pytest.fixture(scope="module")
def model_page():
    """Return the names that the page on models defines."""
    return names_of("write-a-model.md")


class TestModelPage:
    BATCHES = (1, None, 3, None, None)

    def test_same_answer_live_and_replayed(self, model_page, tmp_path):
        """The page's model counts three skipped batches in five steps, in the job and over its log."""
        live = model_page["train"](tmp_path, self.BATCHES)

        assert (live.by_rank, live.steps, live.missed) == ({0: 3}, 5, 0)
        assert model_page["look_at"](tmp_path) == live

    def test_keeps_its_promises(self, model_page, rng):
        """It follows the protocol, does not depend on the cuts of views, and its state is portable and validated."""
        made = numbered((model_page["BatchSkipped"](reason="nan", step=n) for n in range(20)), Source(id="one"))
        cuts = [0, *sorted(rng.sample(range(1, 20), 5)), 20]
        whole, cut, loaded = (model_page["SkippedBatches"]() for _ in range(3))
        whole.consume(FrameView(made[0].source, made))
        for first, end in itertools.pairwise(cuts):
            cut.consume(FrameView(made[0].source, made[first:end]))
        loaded.load(cut.dump())

        assert isinstance(whole, Model)
        assert whole.dump() == cut.dump() == loaded.dump()
        with pytest.raises(DecodeError):
            loaded.load({**cut.dump(), "sources": [["one", "x", 1]]})
        assert loaded.dump() == cut.dump()

    def test_deriving_model(self, model_page):
        """The alarm gets `publish` when it is subscribed, and publishes at the tenth skipped batch."""
        captured = Capture()
        alarm = model_page["SkippedAlarm"]()
        with trackside.Bus() as bus:
            bus.subscribe(alarm)
            bus.subscribe(captured, to=model_page["ManySkipped"])
            for _ in range(10):
                bus.log(model_page["BatchSkipped"](reason="nan"))
            assert bus.flush(60)

        assert isinstance(alarm, DerivingModel)
        assert [event.count for event in captured] == [10]


class TestHandlerPage:
    def test_inline(self, tmp_path):
        """The page's handler keeps the slowest of some steps."""
        names = names_of("write-a-handler.md")
        clock = random.Random(1)
        names["work"] = lambda step: [clock.random() for _ in range(200_000 if step == 2 else 10)]

        assert names["train"](tmp_path, 4) == 2

    def test_on_a_worker(self, tmp_path):
        """The page's sink writes rank, number and name of each event."""
        sink = names_of("write-a-handler.md")["ToFile"](tmp_path / "events.txt")
        with trackside.Bus(source=Source(rank=3)) as bus:
            bus.subscribe(sink, to=IterationEnded)
            bus.log(IterationEnded(duration_ns=1, step=0))

        assert (tmp_path / "events.txt").read_text(encoding="utf-8") == "3 1 trackside.iteration.ended\n"


class TestRulePage:
    def test_own_rule(self):
        """The page's rule keeps the first event of each step, and the others are counted as sampled."""
        captured = Capture()
        names = names_of("write-a-rule.md")
        with names["watch"](captured) as subscription:
            for step in (0, 0, 1, 1, 1, 2):
                trackside.log(IterationEnded(duration_ns=1, step=step))

            assert [event.step for event in captured] == [0, 1, 2]
            assert subscription.stats().sampled == 3

    def test_composed(self):
        """The rules of the first block compose: a fast step is filtered."""
        few = names_of("write-a-rule.md")["few"].start()

        assert few(IterationEnded(duration_ns=10, step=0)) == "filtered"
        assert few(IterationEnded(duration_ns=2 * 10**9, step=0)) is None

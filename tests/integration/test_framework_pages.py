"""The pages on frameworks: each starts with the one line, and its code does what it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from trackside.handlers import replay

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

for package in ("lightning", "transformers", "accelerate"):
    pytest.importorskip(package)


def load(name):
    """Return the module of that name beside this one: tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


frameworks, checks = load("frameworks"), load("framework_checks")
DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Let ``runs/`` be nobody's, and let the trainers be as small as they can be."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", ["lightning.md", "transformers.md"])
def test_starts_with_the_one_line(page):
    """Nothing but the title stands before the code, and telemetry is one expression of it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.match(r"# [^\n]+\n\n```python\n", text)
    assert blocks(page)[0].count("Trackside") - blocks(page)[0].count("import Trackside") == 1


class TestLightning:
    @pytest.fixture
    def names(self, monkeypatch):
        """Run the page's first block, with a trainer class that the other blocks may hook; return its names."""
        import lightning.pytorch as pl

        monkeypatch.setattr(pl, "Trainer", type("Trainer", (pl.Trainer,), {}))
        names = {}
        exec(blocks("lightning.md")[0], names)
        yield names
        for value in names.values():
            if hasattr(value, "_telemetry"):
                value.close()

    def test_the_one_line(self, names):
        """A trainer that was made so is told of."""
        trainer = names["trainer"]
        trainer.fit_loop.max_epochs = 1
        trainer.limit_val_batches = 0
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader(frameworks.Samples(4)))
        ours = next(one for one in trainer.callbacks if type(one).__name__ == "TracksideCallback")
        ours.close()
        assert "training 1" in checks.told(replay("runs"))

    @pytest.mark.parametrize("place", range(1, len(blocks("lightning.md"))))
    def test_other_blocks(self, names, place):
        """The page's other code runs after the first."""
        exec(blocks("lightning.md")[place], names)
        assert names["callback"] is not None


class TestTransformers:
    def test_the_one_line(self):
        """A trainer that was made so is told of."""
        import transformers

        args = transformers.TrainingArguments("checkpoints", max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True)
        names = {"model": frameworks.Regression(), "args": args, "dataset": frameworks.Samples()}
        exec(blocks("transformers.md")[0], names)
        names["trainer"].train()
        callback = names["trainer"].pop_callback(names["TracksideCallback"])
        callback.close()
        assert "training 1" in checks.told(replay("runs"))


class TestAccelerate:
    def test_the_one_line(self):
        """A loop under an accelerator that was made so is told of."""
        import accelerate
        import torch

        names = {}
        exec(blocks("transformers.md")[1], names)
        accelerator, model = names["accelerator"], frameworks.Regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, frameworks.loader(frameworks.Samples(4)))
        for batch in batches:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
        accelerator.end_training()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        assert "training 1" in checks.told(replay("runs"))

"""The pages on frameworks: each starts with the one line, and its code does as the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.events import IterationEnded, SpanEnded
from trackside.handlers import replay

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

for package in ("lightning", "transformers", "accelerate"):
    pytest.importorskip(package)


import framework_checks as checks  # noqa: E402  after what may skip all of this
import frameworks  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Make an empty directory the current one."""
    monkeypatch.chdir(tmp_path)


ONE_LINE = {
    "lightning.md": r"^trainer = Trainer\(callbacks=\[TracksideCallback\(\"runs/\"\)\]\)$",
    "transformers.md": r"callbacks=\[TracksideCallback\(\"runs/\"\)\]\)$",
    "pytorch.md": r"^    trackside.instrument\(model, optimizer, dataloader\)",
    "bridges.md": r"^export TRACKSIDE_ONE_LOGGER=runs/",
}


@pytest.mark.parametrize("page", ONE_LINE)
def test_starts_with_the_one_line(page):
    """Only the title and a paragraph stand before the code, and telemetry is one line of it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    first = re.match(r"# [^\n]+\n\n(?:[^`\n][^\n]*\n){1,3}\n```(?:python|sh)\n(.*?)```", text, re.DOTALL)
    assert first is not None
    assert len(re.findall(ONE_LINE[page], first[1], re.MULTILINE)) == 1


def commands(page):
    """Return the commands of a page, without their comments, as a shell would split them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    split = (shlex.split(line, comments=True) for block in found for line in block.splitlines())
    return [command for command in split if command]


def output_of(*command, **variables):
    """Run a command of this environment's; return what it prints."""
    bin_directory = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}", **variables}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


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
        """A trainer that was made so is recorded."""
        trainer = names["trainer"]
        trainer.fit_loop.max_epochs = 1
        trainer.limit_val_batches = 0
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader(frameworks.Samples(4)))
        ours = next(one for one in trainer.callbacks if type(one).__name__ == "TracksideCallback")
        ours.close()
        assert "training 1" in checks.lines_of(replay("runs"))

    @pytest.mark.parametrize("index", range(1, len(blocks("lightning.md"))))
    def test_other_blocks(self, names, index):
        """The page's other code runs after the first."""
        exec(blocks("lightning.md")[index], names)
        assert names["callback"] is not None


class TestTransformers:
    def test_the_one_line(self):
        """A trainer that was made so is recorded."""
        import transformers

        args = transformers.TrainingArguments("checkpoints", max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True)
        names = {"model": frameworks.Regression(), "args": args, "dataset": frameworks.Samples()}
        exec(blocks("transformers.md")[0], names)
        names["trainer"].train()
        callback = names["trainer"].pop_callback(names["TracksideCallback"])
        callback.close()
        assert "training 1" in checks.lines_of(replay("runs"))


class TestAccelerate:
    def test_the_one_line(self):
        """A loop under an accelerator that was made so is recorded."""
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
        assert "training 1" in checks.lines_of(replay("runs"))


@pytest.mark.hang_guard(300)
class TestPlainPyTorch:
    def test_its_commands(self):
        """The page's loop under the page's command: one run of two ranks, the report, and commands to look at it."""
        (loop,) = blocks("pytorch.md")
        Path("train.py").write_text(loop, encoding="utf-8")
        *looks, run = commands("pytorch.md")
        assert (run[:2], run[run.index("--") + 1]) == (["trackside", "run"], "torchrun")
        assert "2 ranks on 1 host, 1 attempt, ended" in output_of(*run, OMP_NUM_THREADS="1")
        steps = [event for event in replay("runs") if isinstance(event, IterationEnded)]
        assert sorted((event.source.rank, event.step) for event in steps) == [(r, s) for r in (0, 1) for s in range(8)]
        assert len({event.source.run_id for event in steps}) == 1
        assert {event.samples for event in steps} == {16}
        assert [look[1] for look in looks] == ["report", "goodput", "scores"]
        assert "2 ranks on 1 host, 1 attempt, ended" in output_of(*looks[0])
        assert "last step 7" in output_of(*looks[1])
        assert "steps 0 to 7, attempt 0, 2 of 2 rank(s)" in output_of(*looks[2])


class TestBridges:
    @pytest.fixture
    def settings(self):
        """Return the settings that the page begins with, by name."""
        exports = [command[1].split("=", 1) for command in commands("bridges.md") if command[0] == "export"]
        assert [name for name, _ in exports] == ["TRACKSIDE_ONE_LOGGER", "TITAN_STRUCT_LOGGER_HANDLERS"]
        return dict(exports)

    def test_one_logger(self, settings):
        """With the page's setting, and no line of code, a job that One Logger instruments is recorded."""
        pytest.importorskip("nv_one_logger")
        source = Path(__file__).with_name("one_logger_job.py").read_text(encoding="utf-8")
        theirs = "provider.with_exporter(FileExporter(file_path=Path(path)))"
        assert theirs in source
        Path("job.py").write_text(source.replace(theirs, "provider.with_export_config()"), encoding="utf-8")
        output_of(sys.executable, "job.py", "no file", "synchronous", **settings)
        names = [event.name for event in replay("runs") if isinstance(event, SpanEnded)]
        assert names[-3:] == ["training_loop", "testing_loop", "application"]

    def test_import(self):
        """The page's commands make an event log of torchtitan's files, and read it."""
        place = Path("outputs/structured_logs")
        place.mkdir(parents=True)
        lines = [
            {"log_type": "event", "log_type_name": name, "step": step, "time_us": 1_700_000_000_000_000 + at_us}
            for step in (1, 2)
            for name, at_us in (("fwd_bwd_start", step * 100_000), ("fwd_bwd_end", step * 100_000 + 60_000))
        ]
        who = {"global_rank": 0, "source": "training", "host_name": "node", "pid": 7, "tid": 5}
        (place / "training.global_rank_0.jsonl").write_text("".join(json.dumps(who | line) + "\n" for line in lines))
        importing, looking = (command for command in commands("bridges.md") if command[0] == "trackside")
        output_of(*importing)
        assert "last step 2" in output_of(*looking)

"""
A tiny model trained with each framework, with accumulation, evaluation and saves; a job when it is run as a script.

    torchrun … frameworks.py FRAMEWORK DIRECTORY [DIES_AT | straggler]

Then it trains with one line of trackside's, dies once at a step, and goes on from the latest checkpoint after that; or
it goes on until the straggler is found that it has.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20
ACCUMULATED = 2
BATCH = 2
EVALUATED_EVERY = 10
SAVED_EVERY = 5
EVALUATED_BATCHES = 3
NOTHING = contextlib.nullcontext()


class Samples(torch.utils.data.Dataset):
    """A data set of as many samples as a run uses, or another number."""

    def __init__(self, count: int = STEPS * ACCUMULATED * BATCH) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.rand(4, generator=generator), "labels": torch.rand(1, generator=generator)}


class Regression(torch.nn.Module):
    """One layer, whose output is a loss if it gets the labels."""

    def __init__(self, on_train_batch: Callable[[], None] | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.on_train_batch = on_train_batch

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        """Return the output, and the loss if *labels* are given."""
        if self.training and self.on_train_batch is not None:
            self.on_train_batch()
        found = self.layer(self.dropout(x))
        return {"loss": None if labels is None else (found - labels).pow(2).mean(), "logits": found}


def loader(samples: Samples | None = None, batch_size: int = BATCH) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(samples or Samples(), batch_size=batch_size)


# --- Lightning -------------------------------------------------------------------------------------------------


def lightning_module(package: str, model: Regression | None = None, **methods: Any) -> Any:
    """Return a module of *package*, with other methods than the usual ones if they are given."""
    pl: Any = importlib.import_module("lightning.pytorch" if package == "lightning" else package)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model or Regression()
            self.losses: list[torch.Tensor] = []

        def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            self.losses.append(loss.detach().clone())
            return loss

        def validation_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def test_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def predict_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            return self.model(batch["x"])["logits"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Module", (Module,), methods)()


def lightning_trainer(
    package: str, directory: Path, *callbacks: Any, saves: int = SAVED_EVERY, cls: Any = None, **options: Any
) -> Any:
    """Return a trainer of *package* that accumulates, evaluates and saves; not if *saves* is 0."""
    pl: Any = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    saver = pl.callbacks.ModelCheckpoint(
        dirpath=directory / "checkpoints", every_n_train_steps=saves or None, save_top_k=-1
    )
    chosen = {
        "max_steps": STEPS,
        "accumulate_grad_batches": ACCUMULATED,
        "val_check_interval": EVALUATED_EVERY * ACCUMULATED,
        "limit_val_batches": EVALUATED_BATCHES,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": bool(saves),
        "default_root_dir": directory,
        "callbacks": [*callbacks, *([saver] if saves else [])],
    }
    return (cls or pl.Trainer)(**{**chosen, **options})


# --- Transformers ----------------------------------------------------------------------------------------------


def transformers_trainer(directory: Path, *callbacks: Any, model: Regression | None = None, **options: Any) -> Any:
    """Return a trainer that accumulates, evaluates and saves."""
    import transformers

    class Trainer(transformers.Trainer):
        """Keeps the loss of every batch."""

        losses: tuple[torch.Tensor, ...] = ()

        def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
            found = super().compute_loss(model, inputs, **more)
            loss = found[0] if isinstance(found, tuple) else found
            if model.training:
                self.losses = (*self.losses, loss.detach().clone())
            return found

    chosen = {
        "output_dir": str(directory / "checkpoints"),
        "max_steps": STEPS,
        "gradient_accumulation_steps": ACCUMULATED,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "eval_strategy": "steps",
        "eval_steps": EVALUATED_EVERY,
        "save_steps": SAVED_EVERY,
        "logging_steps": EVALUATED_EVERY,
        "learning_rate": 0.1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return Trainer(
        model or Regression(),
        transformers.TrainingArguments(**{**chosen, **options}),
        train_dataset=Samples(),
        eval_dataset=Samples(EVALUATED_BATCHES * BATCH),
        callbacks=list(callbacks),
    )


# --- Accelerate ------------------------------------------------------------------------------------------------


def train_with_accelerate(directory: Path, *trackers: Any, model: Any = None, steps: int = STEPS) -> list[torch.Tensor]:
    """Train with accumulation, evaluation and saves, from the latest state if there is one; return the losses."""
    import accelerate

    accelerator = accelerate.Accelerator(log_with=list(trackers), gradient_accumulation_steps=ACCUMULATED, cpu=True)
    accelerator.init_trackers("frameworks", {"lr": 0.1})
    model = model or Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches, held_out = accelerator.prepare(
        model, optimizer, loader(), loader(Samples(EVALUATED_BATCHES * BATCH * accelerator.num_processes))
    )
    done, losses = 0, []
    states = sorted((directory / "checkpoints").glob("*"))
    if states:
        accelerator.load_state(states[-1])
        done = int(states[-1].name)
    while done < steps:
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                losses.append(loss.detach().clone())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            done += 1
            if done % EVALUATED_EVERY == 0:
                accelerator.log({"loss": loss.item()}, step=done - 1)
                model.eval()
                with torch.no_grad():
                    for evaluated in held_out:
                        model(**evaluated)
                model.train()
            if done % SAVED_EVERY == 0:
                accelerator.save_state(directory / "checkpoints" / f"{done:04}")
            if done == steps:
                break
    accelerator.end_training()
    return losses


# --- plain PyTorch ---------------------------------------------------------------------------------------------


def train_by_hand(
    directory: Path, watch: Callable[..., Any] | None = None, *, model: Any = None, steps: int = STEPS
) -> list[torch.Tensor]:
    """Train as the others do, in a loop before which *watch*, the one line, is called; return the losses."""
    import trackside

    model = model or Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places = sorted((directory / "checkpoints").glob("*"))
    done, losses, held_out = 0, [], loader(Samples(EVALUATED_BATCHES * BATCH))
    if places:
        with trackside.checkpoint_load(path=places[-1]):
            state = torch.load(places[-1], weights_only=True)
            model.load_state_dict(state["model"])
            done = state["done"]
    batches = loader()
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    with trackside.training_loop(train_iterations_start=done), watch(model, optimizer, batches) if watch else NOTHING:
        while done < steps:
            for number, batch in enumerate(batches, start=1):
                loss = model(**batch)["loss"]
                losses.append(loss.detach().clone())
                loss.backward()
                if number % ACCUMULATED:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                if done % SAVED_EVERY == 0:
                    place = directory / "checkpoints" / f"{done:04}"
                    with trackside.checkpoint_save(done - 1, path=place):
                        torch.save({"model": model.state_dict(), "done": done}, place)
                if done % EVALUATED_EVERY == 0:
                    model.eval()
                    with trackside.validation_loop(), torch.no_grad():
                        for evaluated in held_out:
                            with trackside.validation_iteration(done - 1):
                                model(**evaluated)
                    model.train()
                if done == steps:
                    break
    return losses


# --- the job ---------------------------------------------------------------------------------------------------


def dying(at: int) -> Callable[[], None]:
    """
    Return a function that a model calls with each batch: it sleeps, and in the first attempt it dies in step *at*.
    """
    batches = itertools.count()

    def on_train_batch() -> None:
        time.sleep(0.02)
        if next(batches) == at * ACCUMULATED and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            raise RuntimeError(f"dies in step {at}")

    return on_train_batch


def dragging() -> Callable[[], None]:
    """Return a function that a model calls with each batch: it sleeps, on rank 1 ten times as long."""
    seconds = 0.1 if os.environ["RANK"] == "1" else 0.01
    return lambda: time.sleep(seconds)


def stop_with_straggler(package: str, directory: Path, runs: Path | None) -> None:
    """Train on two ranks, of which one is slow, until that is reported; without *runs* there is no log."""
    logging.basicConfig(level=logging.INFO)
    one_line = importlib.import_module(f"trackside.integrations.{package}")
    callback = one_line.StragglerDetectionCallback(
        report_time_interval=0.5,
        calc_relative_gpu_perf=True,
        calc_individual_gpu_perf=False,
        gpu_relative_perf_threshold=0.75,
        gpu_individual_perf_threshold=0.75,
        stop_if_detected=True,
        enable_ptl_logging=False,
        num_gpu_perf_scores_to_log=0,
        agree_every_steps=5,
        **({} if runs is None else {"directory": runs}),
    )
    options: dict[str, Any] = {
        "strategy": "ddp",
        "devices": 2,
        "accumulate_grad_batches": 1,
        "max_steps": 600,
        "saves": 1000,
    }
    trainer = lightning_trainer(package, directory, callback, limit_val_batches=0, val_check_interval=1.0, **options)
    trainer.fit(lightning_module(package, Regression(dragging())), loader(Samples(4 * 600)))


def main(framework: str, place: str, dies_at: str = "-1") -> None:
    directory = Path(place)
    runs = directory / "runs"
    if dies_at in {"straggler", "straggler without a log"}:
        stop_with_straggler(framework, directory, runs if dies_at == "straggler" else None)
        return
    model = Regression(dying(int(dies_at)))
    if framework == "transformers":
        from transformers.trainer_utils import get_last_checkpoint

        from trackside.integrations.transformers import TracksideCallback

        trainer = transformers_trainer(directory, TracksideCallback(runs), model=model, ddp_backend="gloo")
        checkpoints = directory / "checkpoints"
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.exists() else None)
    elif framework == "accelerate":
        from trackside.integrations.accelerate import TracksideTracker

        train_with_accelerate(directory, TracksideTracker(runs), model=model)
    else:
        one_line = importlib.import_module(f"trackside.integrations.{framework}")
        trainer = lightning_trainer(
            framework,
            directory,
            one_line.TracksideCallback(runs),
            strategy="ddp",
            devices=int(os.environ.get("WORLD_SIZE", "1")),
        )
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        samples = Samples(STEPS * ACCUMULATED * BATCH * world_size)
        module = lightning_module(framework, model)
        places = sorted((directory / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
        trainer.fit(module, loader(samples), loader(samples), ckpt_path=places[-1] if places else None)


if __name__ == "__main__":
    main(*sys.argv[1:])

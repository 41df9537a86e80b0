"""A real job for the test bed in a framework's own loop, on gloo under torchrun, with one cause put in on rank 1."""

import functools
import itertools
import os
import sys
import time

import hanging
import torch

import trackside

FRAMEWORK, CAUSE, DIRECTORY = sys.argv[1:]
STEPS = 60
BATCH = 4
EVERY = 20
"""Steps from one checkpoint or evaluation to the next."""
FAILS_AT = 50
IS_SLOW = os.environ["RANK"] == "1"
IS_FIRST_ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
torch.set_num_threads(1)
HANGS = CAUSE.startswith("hung")
HANGS_AT = 30
calls, loads, steps = itertools.count(), itertools.count(), itertools.count()


def delay(cause, seconds=0.03):
    """Delay rank 1 if it has this *cause*."""
    if IS_SLOW and cause == CAUSE:
        time.sleep(seconds)


def pause(step):
    """Let rank 1 pause in every tenth step, if that is the cause."""
    if step % 10 == 9:
        delay("a pause every 10 steps", 0.3)


def fail():
    """End rank 1 in its 51st forward pass, if that is the cause."""
    if not IS_SLOW or next(calls) != FAILS_AT or not IS_FIRST_ATTEMPT:
        return
    if CAUSE in {"raised", "restarted from a checkpoint"}:
        raise ValueError("bad batch")
    if CAUSE == "sys.exit":
        sys.exit(3)


@functools.cache
def apart():
    """Return a group of all ranks, in whose barrier only one waits; the first call makes it, on all ranks."""
    return torch.distributed.new_group()


def hang():
    """Let rank 1 hang in user code after its 31st step, if that is the cause."""
    if HANGS and CAUSE != "hung in its loader":
        group = apart()
        if IS_SLOW and next(steps) == HANGS_AT:
            hanging.hang(CAUSE, group)


class SlowToSave:
    """An object that a checkpoint holds, and that takes a second to write."""

    def __reduce__(self):
        """Return how to read it, after the delay."""
        time.sleep(1.0)
        return SlowToSave, ()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * STEPS * BATCH

    def __getitem__(self, index):
        # Worker processes load ahead, so a delay is seen only where it is longer than a step.
        if CAUSE == "hung in its loader" and IS_SLOW and next(loads) == HANGS_AT * BATCH:
            hanging.hang(CAUSE, None)
        delay("one rank's data", (0.2 if FRAMEWORK == "workers" else 0.03) / BATCH)
        if CAUSE == "all ranks' data":
            time.sleep(0.2 / BATCH)
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(64, generator=generator), "labels": torch.randn(64, generator=generator)}


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        """Return a copy of the inputs."""
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        """Return the gradient, after the delay."""
        delay("backward")
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x, labels=None):
        """Compute outputs and loss, after the delay."""
        delay("forward")
        fail()
        if CAUSE == "evaluation-bound" and not self.training:
            time.sleep(0.25)
        outputs = self.last(Slow.apply(self.first(x).relu()))
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


def train_with_lightning():
    """Train with Lightning and its callback."""
    import lightning.pytorch as pl

    from trackside.integrations.lightning import TracksideCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, place):
            """Return the loss."""
            return self.net(**batch)["loss"]

        def on_train_batch_end(self, outputs, batch, place):
            """Delay the next step."""
            delay("user code between the parts")
            pause(place)
            hang()

        def validation_step(self, batch, place):
            """Evaluate a batch."""
            self.net(**batch)

        def on_save_checkpoint(self, checkpoint):
            """Make the checkpoint one that takes long to write."""
            if CAUSE == "checkpoint-bound":
                checkpoint["slow"] = SlowToSave()

        def configure_optimizers(self):
            """Return the optimizer."""
            return torch.optim.SGD(self.parameters(), 0.01)

    saves, evaluates = CAUSE == "checkpoint-bound", CAUSE == "evaluation-bound"
    callbacks = [TracksideCallback(DIRECTORY)]
    if saves:
        saved = f"{DIRECTORY}-checkpoints"
        callbacks.append(pl.callbacks.ModelCheckpoint(saved, every_n_train_steps=EVERY, save_last=True, save_top_k=-1))
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=saves, callbacks=callbacks, num_sanity_val_steps=0,
        val_check_interval=EVERY, limit_val_batches=10 if evaluates else 0,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Data(), BATCH)
    trainer.fit(Module(), loader, loader)


def train_with_transformers():
    """Train with Transformers' trainer and its callback."""
    import transformers

    from trackside.integrations.transformers import TracksideCallback

    class Trainer(transformers.Trainer):
        def _save(self, *arguments, **named):
            if CAUSE == "checkpoint-bound":
                time.sleep(1.0)
            super()._save(*arguments, **named)

    class Hanging(transformers.TrainerCallback):
        def on_step_end(self, *arguments, **named):
            """Hang, if that is the cause."""
            hang()

    saves, evaluates = CAUSE in {"checkpoint-bound", "restarted from a checkpoint"}, CAUSE == "evaluation-bound"
    arguments = transformers.TrainingArguments(
        output_dir=f"{DIRECTORY}-checkpoints", max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="steps" if saves else "no", save_steps=EVERY,
        eval_strategy="steps" if evaluates else "no", eval_steps=EVERY, logging_strategy="no",
    )  # fmt: skip
    few = torch.utils.data.Subset(Data(), range(20 * 8))
    callbacks = [TracksideCallback(DIRECTORY), Hanging()]
    trainer = Trainer(Net(), arguments, train_dataset=Data(), eval_dataset=few, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=not IS_FIRST_ATTEMPT)


def train_with_accelerate():
    """Train with Accelerate and its tracker."""
    import accelerate

    from trackside.integrations.accelerate import TracksideTracker

    accelerator = accelerate.Accelerator(log_with=TracksideTracker(DIRECTORY), cpu=True)
    accelerator.init_trackers("job")
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    model, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(Data(), BATCH))
    for step, batch in enumerate(loader):
        if step == STEPS:
            break
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        delay("user code between the parts")
        if CAUSE == "evaluation-bound" and step % EVERY == EVERY - 1:
            model.eval()
            with torch.no_grad():
                for _ in range(10):
                    model(**batch)
            model.train()
    accelerator.end_training()


def train_with_workers():
    """Train in a plain loop whose loader has worker processes."""
    torch.distributed.init_process_group("gloo")
    net = Net()
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(Data(), BATCH, num_workers=1)
    trackside.start(DIRECTORY)
    loss_stat = trackside.stat("train/loss")
    trackside.instrument(model, optimizer, loader)
    optimizer.register_step_pre_hook(lambda *_: delay("optimizer"))
    for step, batch in enumerate(loader):
        if step == STEPS:
            break
        loss = model(**batch)["loss"]
        loss.backward()
        loss_stat.record(float("nan") if CAUSE == "NaN in a stat" and step >= STEPS // 2 else loss.item())
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if HANGS:
        hanging.start(DIRECTORY, hangs=True)
    {
        "lightning": train_with_lightning,
        "transformers": train_with_transformers,
        "accelerate": train_with_accelerate,
        "workers": train_with_workers,
    }[FRAMEWORK]()

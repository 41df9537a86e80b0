"""A real job for the test bed in a framework's own loop, on gloo under torchrun, with one cause put in on rank 1."""

import os
import sys
import time

import torch

FRAMEWORK, CAUSE, DIRECTORY = sys.argv[1:]
STEPS = 60
BATCH = 4
IS_SLOW = os.environ["RANK"] == "1"
torch.set_num_threads(1)


def delay(cause, seconds=0.03):
    """Delay rank 1 if it has this *cause*."""
    if IS_SLOW and cause == CAUSE:
        time.sleep(seconds)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * STEPS * BATCH

    def __getitem__(self, index):
        # Worker processes load ahead, so a delay is seen only where it is longer than a step.
        delay("one rank's data", (0.2 if FRAMEWORK == "workers" else 0.03) / BATCH)
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

        def configure_optimizers(self):
            """Return the optimizer."""
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[TracksideCallback(DIRECTORY)],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), BATCH))


def train_with_transformers():
    """Train with Transformers' trainer and its callback."""
    import transformers

    from trackside.integrations.transformers import TracksideCallback

    arguments = transformers.TrainingArguments(
        output_dir=f"{DIRECTORY}-checkpoints", max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    transformers.Trainer(Net(), arguments, train_dataset=Data(), callbacks=[TracksideCallback(DIRECTORY)]).train()


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
    accelerator.end_training()


def train_with_workers():
    """Train in a plain loop whose loader has worker processes."""
    import trackside

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
    {
        "lightning": train_with_lightning,
        "transformers": train_with_transformers,
        "accelerate": train_with_accelerate,
        "workers": train_with_workers,
    }[FRAMEWORK]()

"""
A plain PyTorch loop under torchrun, watched by one line. Arguments: the directory, and after which step it dies once.

It saves every third step and resumes from the latest checkpoint.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import trackside

STEPS = 12
NEVER = -1
SAVE_EVERY = 3
STEP_S = 0.02
"""The least length of a step, so that two of them exceed the error of measuring them."""

directory = Path(sys.argv[1])
dies_after = int(sys.argv[2]) if len(sys.argv) > 2 else NEVER
saved = directory / "checkpoint.pt"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if saved.exists():
        with trackside.checkpoint_load():
            state = torch.load(saved, weights_only=True)
            model.load_state_dict(state["model"])
            first = state["step"]
    samples = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 64))
    batches = torch.utils.data.DataLoader(torch.utils.data.Subset(samples, range(first * 8, STEPS * 8)), batch_size=8)
    with trackside.training_loop(train_iterations_start=first), trackside.instrument(model, optimizer, batches):
        for step, (inputs,) in enumerate(batches, start=first):
            time.sleep(STEP_S)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % SAVE_EVERY == 0:
                with trackside.checkpoint_save(step + 1):
                    if rank == 0:
                        torch.save({"model": model.state_dict(), "step": step + 1}, saved)
                    dist.barrier()
            if step == dies_after and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                trackside.flush()
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with trackside.start(directory / "runs", heartbeat_interval_s=0.2, report=False):
        main()

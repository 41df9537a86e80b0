"""A real job for the test bed: DistributedDataParallel on gloo under torchrun, with one cause put in on rank 1."""

import os
import sys
import time

import torch
import torch.distributed as dist

import trackside

CAUSE, DIRECTORY = sys.argv[1:]
STEPS = 80

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)


def is_here(cause):
    """Return whether *cause* is this job's, and this rank has it."""
    return cause == CAUSE and rank == 1


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, place):
        if is_here("one rank's data"):
            time.sleep(0.01)
        return torch.randn(64), torch.randn(64)


class Net(torch.nn.Sequential):
    def forward(self, inputs):
        """Compute the outputs, and before that what delays them."""
        if is_here("forward"):
            time.sleep(0.03)
        return super().forward(inputs)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        """Return a copy of the inputs."""
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        """Give the gradient back, and before that what delays it."""
        if is_here("backward"):
            time.sleep(0.02)
        return gradient


class Identity(torch.nn.Module):
    def forward(self, inputs):
        """Return the inputs."""
        return SlowBackward.apply(inputs)


net = Net(torch.nn.Linear(64, 256), torch.nn.ReLU(), Identity(), torch.nn.Linear(256, 64))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(Data(), batch_size=4)
loss_of = torch.nn.MSELoss()

trackside.start(DIRECTORY)
trackside.instrument(model, optimizer, loader)
for step, (inputs, targets) in enumerate(loader):
    if is_here("user code between the parts") or (is_here("slow from half on") and step >= STEPS // 2):
        time.sleep(0.03)
    if is_here("killed") and step == 60:
        time.sleep(1.5)  # the log is written every half second
        os.kill(os.getpid(), 9)
    if is_here("raised") and step == 60:
        raise ValueError("bad batch")
    loss_of(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()

"""A real job for the test bed: a plain loop on gloo, with one cause put in, on rank 1 unless it concerns all ranks."""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from functools import partial

import hanging
import torch
import torch.distributed as dist

import trackside
from trackside.instruments import checkpoint_save, configure_sections, waiting

STYLE, CAUSE, DIRECTORY = sys.argv[1:]
STEPS, BATCH = 80, 4
LAUNCHER = os.environ.get("VERDICTS_TRACEML")
"""Set where TraceML watches the same run."""
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

meet = os.environ.get("VERDICTS_MEET")  # where a launcher sets only RANK and WORLD_SIZE
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{meet}" if meet else "env://", rank=rank, world_size=ranks)
torch.manual_seed(0)
torch.set_num_threads(1)
apart = dist.new_group()  # made by all ranks; in its barrier only one waits
now = {"step": 0}


def delayed(seconds, *, everybody=False, since=0, until=STEPS, every=1):
    """Return a function that sleeps at the place of the cause."""

    def delay():
        step = now["step"]
        if (everybody or rank == 1) and since <= step < until and step % every == every - 1:
            time.sleep(seconds)

    return delay


def hang():
    """Block for ever, in step 40 of rank 1."""
    if rank == 1 and now["step"] == STEPS // 2:
        hanging.hang(CAUSE, apart)


def stumble():
    """Sleep now and then, on every rank, for no reason."""
    chance = random.Random(1_000 * rank + now["step"])
    time.sleep(0.01 * chance.random() + (0.05 if chance.random() < 0.04 else 0.0))


lock = threading.Lock()


def hold_lock():
    """Hold a lock that rank 1 needs in each step, most of the time."""
    while True:
        with lock:
            time.sleep(0.04)
        time.sleep(0.0005)


def acquire_lock():
    """Wait for the lock, on rank 1: from nothing to as long as it is held, by chance."""
    if rank == 1:
        with lock:
            pass


def alternate():
    """Let each rank be the slow one for ten steps."""
    if now["step"] // 10 % ranks == rank:
        time.sleep(0.04)


CAUSES = {
    "healthy and noisy": ("user", stumble),
    "one rank's data": ("data", delayed(0.04)),
    "all ranks' data": ("data", delayed(0.06, everybody=True)),
    "forward": ("forward", delayed(0.03)),
    "backward": ("backward", delayed(0.03)),
    "optimizer": ("optimizer", delayed(0.03)),
    "user code between the parts": ("user", delayed(0.03)),
    "heavy network": ("exchange", delayed(0.08, everybody=True)),
    "a pause every 10 steps": ("user", delayed(0.3, every=10)),
    "a pause every 10 steps on all ranks": ("user", delayed(0.3, everybody=True, every=10)),
    "slow from half on": ("forward", delayed(0.03, since=40)),
    "recovers half-way": ("user", delayed(0.05, since=15, until=50)),
    "hung in its loader": ("data", hang),
    "hung in user code": ("user", hang),
    "hung in a lock": ("user", hang),
    "hung in a barrier": ("user", hang),
    "slow ranks in turn": ("forward", alternate),
    "a lock": ("user", acquire_lock),
}
WHERE, DELAY = CAUSES.get(CAUSE, ("", None))


def at(place):
    """Apply the cause at this *place* of a step."""
    if place == WHERE:
        DELAY()


def between_the_parts():
    """Apply the cause once in a step, or to the process."""
    step = now["step"]
    at("user")
    if rank == 1 and step == 60 and ATTEMPT == 0:
        if CAUSE == "killed":
            time.sleep(1.5)  # the log is written every half second
            os.kill(os.getpid(), signal.SIGKILL)
        if CAUSE in {"raised", "restarted"}:
            raise ValueError("bad batch")
        if CAUSE == "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Data(torch.utils.data.Dataset):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches * BATCH

    def __getitem__(self, place):
        if place % BATCH == 0:
            at("data")
        if CAUSE == "a worker of the loader is killed" and rank == 1 and place == 50 * BATCH:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(64), torch.randn(64)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        """Return a copy of the inputs."""
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        """Return the gradient, after the delay."""
        at("backward")
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, inputs):
        """Compute the outputs, after the delay."""
        time.sleep(
            0.015
        )  # the time that a device would compute: the exchange of so small a model must not be most of a step
        at("forward")
        if CAUSE == "uneven lengths":  # by nature: a batch is as long as its longest sentence, on each rank another one
            time.sleep(0.001 * random.Random(1_000 * now["step"] + rank).randint(2, 40))
        return self.last(Slow.apply(self.first(inputs).relu()))


def exchange_late(_, bucket):
    """Average gradients, as over a slow network."""

    def finish(done):
        at("exchange")
        return done.value()[0] / ranks

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(finish)


def loss_at(step, loss):
    """Return *loss*, or a value that is not finite."""
    return loss * float("nan") if CAUSE == "NaN" and step >= 30 and rank == 1 else loss


def evaluate(model):
    """Evaluate for some seconds."""
    model.eval()
    with torch.no_grad():
        for _ in range(25):
            time.sleep(0.1)
            model(torch.randn(BATCH, 64))
    model.train()


def stand_still(batch, net):
    """Save or evaluate, on all ranks or on the first one, for which the others wait in a barrier."""
    is_at_work = rank == 0 or CAUSE.endswith("-bound")
    if CAUSE in {"checkpoint-bound", "checkpoints of one rank"} and is_at_work:
        with checkpoint_save(batch):
            time.sleep(1.0)
    if CAUSE in {"evaluation-bound", "evaluations of one rank"} and is_at_work:
        evaluate(net)
    if CAUSE.endswith("s of one rank"):
        dist.barrier()


def train_instrumented():
    """Train in an ordinary loop."""
    model = torch.nn.parallel.DistributedDataParallel(Net())
    if CAUSE == "heavy network":
        model.register_comm_hook(None, exchange_late)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    accumulated = 4 if "accumulated" in CAUSE else 1
    workers = 1 if CAUSE == "a worker of the loader is killed" else 0
    loader = torch.utils.data.DataLoader(Data(STEPS * accumulated), batch_size=BATCH, num_workers=workers)
    trace_step = contextlib.nullcontext
    if LAUNCHER:
        import traceml_ai

        traceml_ai.init(mode="auto")
        trace_step = partial(traceml_ai.trace_step, model)
    trackside.instrument(model, optimizer, loader)
    optimizer.register_step_pre_hook(lambda *_: at("optimizer"))  # within what instrument() times
    losses = torch.nn.MSELoss()
    for batch, (inputs, targets) in enumerate(loader):
        now["step"], place = divmod(batch, accumulated)
        is_last = place == accumulated - 1
        with trace_step():
            if is_last:
                between_the_parts()
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = loss_at(now["step"], losses(model(inputs), targets))
                if CAUSE == "accumulated, forward" and rank == 1:
                    time.sleep(0.01)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        if batch % 20 == 19:
            stand_still(batch, model.module)


def train_by_hand():
    """Train with sections and iterations of its own."""
    configure_sections(window_steps=10)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    losses = torch.nn.MSELoss()
    loader = iter(torch.utils.data.DataLoader(Data(STEPS), batch_size=BATCH))
    for step in range(40 if ATTEMPT else 0, STEPS):
        now["step"] = step
        with trackside.training_iteration(step) as iteration:
            with trackside.section("data_loading"):
                inputs, targets = next(loader)
            between_the_parts()
            with trackside.section("forward"):
                loss = loss_at(step, losses(net(inputs), targets))
            with trackside.section("backward"):
                loss.backward()
            with waiting("all_reduce"):
                for parameter in net.parameters():
                    dist.all_reduce(parameter.grad)
                at("exchange")
            with trackside.section("optimizer"):
                at("optimizer")
                optimizer.step()
                optimizer.zero_grad()
            iteration.set(loss=loss)


if not (CAUSE == "log missing" and rank == 1):
    hanging.start(DIRECTORY, hangs=CAUSE.startswith("hung"))
if CAUSE == "a lock":
    threading.Thread(target=hold_lock, daemon=True).start()
if CAUSE == "startup-bound":
    time.sleep(10)
(train_by_hand if STYLE == "sections" else train_instrumented)()
dist.barrier()
dist.destroy_process_group()

"""
Train a small transformer to write Python, and watch it with trackside.

It learns from the source of Python's standard library, one character at a time, on two processes that share the work as
two GPUs would. One of them becomes slow at loading its data; halfway it is killed, torchrun restarts both, and they go
on from the latest checkpoint. Run as it is, this script starts a collector, says how to watch it from another terminal,
starts the ranks under torchrun and ends with a summary of the recorded events. The training loop is below; the parts
around it are in charlm/.

To start the ranks by hand: torchrun --standalone --nproc-per-node 2 examples/train_charlm.py --out runs/mine
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import trackside
from charlm.checkpoints import checkpoint_path, latest_checkpoint, save_checkpoint
from charlm.corpus import VOCABULARY, Batches, Corpus, decode, encode, load_corpus
from charlm.disruption import Kill, Request, Restart, kill_this_rank, leave_ending_to_rank, witness
from charlm.events import SampleWritten
from charlm.laps import Lap
from charlm.launch import launch_ranks
from charlm.model import CharTransformer
from charlm.options import read_options
from charlm.overhead import WARM_STEPS, Costs, cpu_of_threads_s, measure_costs
from charlm.slowness import Slowness
from charlm.summary import print_summary
from charlm.watching import watched
from trackside.instruments import configure_sections
from trackside.job import set_training_config

TURN_STEPS = 20


@attrs.define
class Job:
    """The objects that one rank works with."""

    options: argparse.Namespace
    corpus: Corpus
    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    first_step: int
    request: Request
    slowness: Slowness


def train(job: Job, steps: range, *, is_rehearsal: bool = False) -> list[Lap]:
    """
    Train for *steps*.

    Args:
        job: The job to train.
        steps: The numbers of the steps.
        is_rehearsal: Whether to leave out everything but the steps themselves.

    Returns:
        The start and the end of each step.
    """
    model, optimizer, ranks = job.model, job.optimizer, dist.get_world_size()
    loss_seen = trackside.stat("train.loss", unit="nats/char", aggregations=("mean", "min", "max"))
    laps: list[Lap] = []
    batches = load_batches(job, steps)

    with trackside.training_loop(train_iterations_start=steps[0], train_iterations_target=steps.stop):
        for step in steps:
            if not is_rehearsal:
                job.request.exit_if_requested()
                kill_once(job, laps, step)
            began_s = time.perf_counter()
            with trackside.training_iteration(step=step) as iteration:
                with trackside.data_loading(), trackside.section("data_loading"):
                    text, following = next(batches)
                    if not is_rehearsal:
                        job.slowness.suffer(dist.get_rank(), step, job.options.out)
                with trackside.zero_grad():
                    optimizer.zero_grad()
                with trackside.model_forward(), trackside.section("forward"):
                    loss = model(text, following)
                with trackside.model_backward():  # no section: in here the fast rank waits for the slow one
                    loss.backward()
                with trackside.optimizer_update(), trackside.section("optimizer"):
                    optimizer.step()
                iteration.set(loss=loss, samples=ranks * len(text), tokens=ranks * text.numel())
                loss_seen.record(loss.item())
            laps.append(Lap(step, began_s, time.perf_counter()))
            if not is_rehearsal:
                after_step(job, laps, loss.item())
    return laps


def after_step(job: Job, laps: Sequence[Lap], loss: float) -> None:
    """Validate, let the model write something and save it, if the step that has just ended is one for that."""
    options, step = job.options, laps[-1].step
    is_last = step + 1 == options.steps
    if is_last or (step + 1) % options.validate_every == 0:
        show_progress(job, laps[-options.validate_every :], loss, validate(job, step))
        write_sample(job, step)
    if is_last or (step + 1) % options.save_every == 0:
        save(job, step)


def load_batches(job: Job, steps: range) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's batches of *steps*, made by processes of their own."""
    options = job.options
    with trackside.dataloader_init():
        batches = Batches(
            job.corpus.training,
            batch_size=options.batch_size,
            context=options.context,
            seed=options.seed + dist.get_rank(),
        )
        return iter(
            DataLoader(
                batches,
                batch_size=None,
                sampler=steps,
                num_workers=options.workers,
                multiprocessing_context="fork" if options.workers else None,
                worker_init_fn=leave_ending_to_rank,
            )
        )


@torch.no_grad()
def validate(job: Job, step: int, batches: int = 8) -> float:
    """Return the mean loss over text that was never trained on, each rank's share counted."""
    options, ranks = job.options, dist.get_world_size()
    texts = Batches(job.corpus.validation, batch_size=options.batch_size, context=options.context, seed=dist.get_rank())
    total = torch.zeros(())
    with trackside.validation_loop():
        for index in range(batches):
            with trackside.validation_iteration(step=step) as iteration:
                text, following = texts[index]
                loss = job.model.module(text, following)
                iteration.set(loss=loss, samples=ranks * len(text), tokens=ranks * text.numel())
                total += loss
        dist.all_reduce(total)
    return total.item() / (batches * ranks)


def write_sample(job: Job, step: int, prompt: str = "def __init__(self, ") -> None:
    """Let rank 0's model write some Python, while the others wait."""
    with trackside.span("write_sample", badput_type="WRITING_SAMPLES"):
        if dist.get_rank() == 0:
            text = job.model.module.write(encode(prompt.encode()), characters=120, seed=job.options.seed)
            trackside.log(SampleWritten(step=step, prompt=prompt, text=decode(text)))
        dist.barrier()


def show_progress(job: Job, laps: Sequence[Lap], loss: float, validation_loss: float) -> None:
    """Print the progress and the speed of the training; *laps* are the latest steps."""
    per_s = len(laps) / (laps[-1].ended_s - laps[0].began_s)
    done = f"{laps[-1].step + 1:>7} of {job.options.steps} steps"
    say(f"{done}   loss {loss:.3f}   validation {validation_loss:.3f} nats/char   {per_s:.1f} steps/s")


def say(text: str) -> None:
    """Print a line, on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def save(job: Job, step: int) -> None:
    """Let rank 0 write a checkpoint, while the others wait: the ranks' models are equal."""
    path = checkpoint_path(job.options.out / "checkpoints", step)
    with trackside.checkpoint_save(step, path=path) as checkpoint:
        if dist.get_rank() == 0:
            state = {"step": step, "model": job.model.module.state_dict(), "optimizer": job.optimizer.state_dict()}
            save_checkpoint(path, state)
        dist.barrier()
        checkpoint.set(size_bytes=path.stat().st_size)


def kill_once(job: Job, laps: Sequence[Lap], step: int) -> None:
    """Be killed if that is due and torchrun would restart the job; the latest checkpoint is whole by now."""
    options, rank = job.options, dist.get_rank()
    has_restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    is_victim = has_restarts and rank == dist.get_world_size() - 1
    if is_victim and step == options.kill_at and Kill.load(options.out) is None:
        kill_this_rank(options.out, rank=rank, laps=laps, step=step, resumes_at=resume_step(options))


def resume_step(options: argparse.Namespace) -> int:
    """Return the step after the latest checkpoint."""
    latest = latest_checkpoint(options.out / "checkpoints")
    return 0 if latest is None else int(latest.stem.partition("-")[2]) + 1


def prepare(options: argparse.Namespace) -> Job:
    """Make the model, and bring it to where the latest checkpoint was."""
    with trackside.distributed_init():
        dist.init_process_group("gloo")
    with trackside.dataloader_init():
        corpus = load_corpus()
    with trackside.model_init():
        torch.manual_seed(options.seed)
        module = CharTransformer(VOCABULARY, width=options.width, layers=options.layers, context=options.context)
        model = DistributedDataParallel(module)
    with trackside.optimizer_init():
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    weights = sum(parameter.numel() for parameter in model.parameters())
    set_training_config(describe_training(options, weights))
    say(f"  {weights:,} weights learn from {len(corpus.training):,} characters of {corpus.files} modules")
    slowness = Slowness(dist.get_world_size() - 1, options.slow_from, options.slow_ms / 1e3)
    job = Job(options, corpus, model, optimizer, first_step=0, request=Request(), slowness=slowness)
    if options.resume == "auto":
        resume(job)
    return job


def describe_training(options: argparse.Namespace, weights: int) -> trackside.TrainingConfig:
    """Publish the values of the training that telemetry needs for its speed."""
    return trackside.TrainingConfig(
        perf_tag=f"charlm, {weights:,} weights, {options.ranks} ranks",
        global_batch_size=options.ranks * options.batch_size,
        seq_length=options.context,
        flops_per_sample=6 * weights * options.context,  # forward 2, backward 4 for each weight and character
        is_log_throughput_enabled=True,
        train_iterations_target=options.steps,
        log_every_n_train_iterations=options.validate_every,
    )


def resume(job: Job) -> None:
    """Go on from the latest checkpoint, if there is one."""
    path = latest_checkpoint(job.options.out / "checkpoints")
    if path is None:
        return
    with trackside.checkpoint_load(path=path) as load:
        state = torch.load(path, weights_only=True)
        job.model.module.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
        load.set(current_iteration=state["step"])
    job.first_step = state["step"] + 1
    say(f"  going on from {path.name}, at step {job.first_step}")


def run_rank(options: argparse.Namespace) -> None:
    """Be one of the ranks."""
    began_s = time.time()
    config = trackside.JobConfig(application_name="charlm", session_tag=options.out.name)
    configure_sections(window_steps=max(1, options.validate_every // 4))
    with trackside.start(options.out, job=config, report=False), trackside.application():
        job = prepare(options)
        if dist.get_rank() == 0 and Kill.load(options.out) is not None:
            Restart(began_s, job.first_step).save(options.out)
        with witness(options.out):
            laps = train(job, range(job.first_step, options.steps)) if job.first_step < options.steps else []
        threads_s = cpu_of_threads_s()
    if laps:
        costs = compare(job, laps, threads_s)
        if dist.get_rank() == 0:
            costs.save(options.out / "costs.json")
    dist.destroy_process_group()


def compare(job: Job, laps: Sequence[Lap], threads_s: float) -> Costs:
    """Measure the cost of telemetry, training on for a while."""
    options = job.options
    if options.overhead_pairs:
        say(f"  {options.overhead_pairs} times {TURN_STEPS} steps without telemetry and as many with it")
    text, following = Batches(job.corpus.validation, batch_size=options.batch_size, context=options.context, seed=0)[0]
    steps = range(options.steps, options.steps + WARM_STEPS + TURN_STEPS)
    return measure_costs(
        laps,
        threads_s,
        work=lambda: job.model.module(text, following).backward(),
        train=lambda: train(job, steps, is_rehearsal=True),
        pairs=options.overhead_pairs,
        scratch=options.out.parent,
    )


def main() -> int:
    """Launch the ranks and print the summary, or be one of them."""
    options = read_options(__doc__)
    if "RANK" in os.environ:
        try:
            run_rank(options)
        except (RuntimeError, SystemExit):
            if Kill.load(options.out) is None or os.environ.get("TORCHELASTIC_RESTART_COUNT") != "0":
                raise
            return 1  # without a message: it has only lost the rank that was killed
        except KeyboardInterrupt:
            return 130
        return 0
    print(f"Training {options.ranks} ranks for {options.steps} steps into {options.out}", flush=True)
    arguments = [*sys.argv[1:], "--out", str(options.out)]
    restarts = 1 if 0 <= options.kill_at < options.steps else 0
    with watched():
        status = launch_ranks(Path(__file__), arguments, ranks=options.ranks, restarts=restarts)
    print_summary(options.out)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""
Train with Ray on several nodes, each worker of which records and sends to a collector.

Ray Train sets RANK, LOCAL_RANK and WORLD_SIZE in its workers, as torchrun does, so a worker needs no more than the
collector's endpoint and the keys. Start the collector first: ``trackside collect``, as in slurm.sbatch.
"""

from __future__ import annotations

import os

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import trackside


def train() -> None:
    """Train on one worker."""
    with trackside.start("", report=False):
        for step in range(1000):
            with trackside.training_iteration(step=step) as iteration:
                iteration.set(loss=1.0 / (step + 1), samples=8)  # your forward, backward and optimizer step


if __name__ == "__main__":
    of_workers = {name: os.environ[name] for name in ("TRACKSIDE_COLLECTOR", "TRACKSIDE_KEYS")}
    ray.init(runtime_env={"env_vars": of_workers})
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="train")).fit()

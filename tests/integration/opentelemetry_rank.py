"""One rank of a job: 250 iterations with a span in each, sent to a collector and written to a log."""

from __future__ import annotations

import sys

import trackside
from trackside.handlers.opentelemetry import OpenTelemetrySink

ITERATIONS = 250


def train(directory, url):
    sink = OpenTelemetrySink(url)
    with trackside.start(directory, handlers=[sink], report=False) as job:
        with trackside.application(), trackside.training_loop(train_iterations_start=0):
            for step in range(ITERATIONS):
                with trackside.training_iteration(step=step), trackside.model_forward():
                    pass
        assert job.close(timeout_s=20), sink.losses()


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2])

"""
One rank of a gloo job that watches for stragglers and gathers their windows; prints its reports, as JSON.

Its sections last by a clock of its own, so that a busy machine makes no rank slow.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch.distributed

import trackside
from trackside.events import clock
from trackside.instruments import configure_sections, section, training_iteration
from trackside.job import StragglerWatch

STEPS, WINDOW_STEPS, SLOW_FROM = 60, 5, 20
SLOW = 2


class OwnClock:
    """A clock that a test moves."""

    def __init__(self):
        self.now_ns = time.time_ns()

    def __call__(self):
        """Return the time."""
        return self.now_ns

    def pass_ms(self, ms):
        """Let *seconds* pass."""
        self.now_ns += ms * 1_000_000


def main():
    own = OwnClock()
    with clock.installed(own, own):
        train(own)


def train(own):
    rank, world, folder, killed_at = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    configure_sections(window_steps=WINDOW_STEPS)
    watch = StragglerWatch(
        windows_from="gather",
        report_every_steps=10,
        stop_if_detected=killed_at < 0,
        agree_every_steps=10,
        timeout_s=60.0 if killed_at < 0 else 5.0,
        kinds=["relative"],
    )
    config = trackside.JobConfig(application_name="watched", rank=rank, world_size=world, run_id="r")
    recorded = {"reports": [], "stopped_after": None, "waited_s": 0.0}
    with trackside.start(folder, job=config, handlers=[watch], report=False):
        for step in range(STEPS):
            if rank == SLOW and step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with training_iteration(step), section("data"):
                own.pass_ms(20 if rank == SLOW and step >= SLOW_FROM else 2)
            trackside.flush(60.0)  # for the windows to be among those that are gathered
            before_s = time.monotonic()
            report = watch.report_if_due()
            recorded["waited_s"] = max(recorded["waited_s"], time.monotonic() - before_s)
            if report is not None:
                recorded["reports"].append(
                    {
                        "window": report.window,
                        "slow": [[one.rank, one.what, one.since_step] for one in report.stragglers],
                        "silent": [lacking.rank for lacking in report.missing if lacking.what == "all"],
                    }
                )
            if watch.should_stop(step):
                recorded["stopped_after"] = step
                break
    print(json.dumps(recorded), flush=True)
    os._exit(0)  # without a peer gloo's own end would wait


main()

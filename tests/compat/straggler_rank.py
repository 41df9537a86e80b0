"""
One rank of a job that uses the detector over a gloo group; prints what its reports say.

Its section lasts by a clock of its own, so that a busy machine makes no rank slow.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import torch.distributed

from trackside.compat.straggler import Detector
from trackside.events import clock


def main():
    ticks = itertools.count(10**9, 40_000_000 if sys.argv[1] == "1" else 10_000_000)
    with clock.installed(lambda: next(ticks), time.time_ns):  # each reading is so much later than the one before
        run()


def run():
    rank, world, store, gather = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "gather"
    Detector.initialize(gather_on_rank0=gather, node_name=f"node{rank}")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for _ in range(4):
        with Detector.detection_section("work", profile_cuda=False):
            pass
    report = Detector.generate_report()
    sent = None
    if report is not None:
        sent = {
            "ranks": sorted(report.section_relative_perf_scores["work"]),
            "slow": sorted(report.identify_stragglers()["straggler_sections_relative"].get("work", ())),
            "nodes": report.rank_to_node,
        }
    Detector.shutdown()
    torch.distributed.destroy_process_group()
    print(json.dumps(sent))


main()

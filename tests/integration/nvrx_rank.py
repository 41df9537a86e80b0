"""One rank of nvidia-resiliency-ext's own report generator: it reads windows and prints the reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed
from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
from nvidia_resiliency_ext.straggler.statistics import Statistic


def summaries(table):
    return {
        name: {Statistic.MED: median, Statistic.AVG: mean, Statistic.NUM: count}
        for name, (median, mean, count) in table.items()
    }


def plain(stragglers):
    def ranks(ids):
        return sorted(one.rank for one in ids)

    return {
        key: {name: ranks(ids) for name, ids in found.items()} if isinstance(found, dict) else ranks(found)
        for key, found in stragglers.items()
    }


def main():
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    generator = ReportGenerator(
        ["relative_perf_scores", "individual_perf_scores"], gather_on_rank0=False, node_name=f"node{rank}"
    )
    answers = []
    for window in json.loads((folder / "windows.json").read_text()):
        report = generator.generate_report(summaries(window[rank]["sections"]), summaries(window[rank]["kernels"]))
        answers.append(
            {
                "relative": {
                    "gpu": report.gpu_relative_perf_scores[rank],
                    "sections": {name: by[rank] for name, by in report.section_relative_perf_scores.items()},
                },
                "individual": {
                    "gpu": report.gpu_individual_perf_scores[rank],
                    "sections": {name: by[rank] for name, by in report.section_individual_perf_scores.items()},
                },
                "stragglers": plain(report.identify_stragglers()),
            }
        )
    (folder / f"answers{rank}.json").write_text(json.dumps(answers))
    torch.distributed.destroy_process_group()


main()

"""A rank under DistributedDataParallel, rank 1 slow in backward(): the time of each by the clock and by its spans."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import trackside
from trackside.events import SpanEnded

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
spans, clock = {"model_backward": [], "gradient_synchronization": []}, []
trackside.subscribe(lambda event: event.name in spans and spans[event.name].append(event.duration_ns), to=SpanEnded)
if torch.distributed.get_rank() == 1:
    model.module[0].weight.register_hook(lambda _: time.sleep(0.1))
with trackside.instrument(model, optimizer):
    for _ in range(12):
        loss = model(torch.randn(8, 1024)).square().mean()
        began_ns = time.perf_counter_ns()
        loss.backward()
        clock.append(time.perf_counter_ns() - began_ns)
        optimizer.step()
        optimizer.zero_grad()
path = Path(sys.argv[1]) / f"{torch.distributed.get_rank()}.json"
path.write_text(json.dumps({"clock": clock, "spans": spans}), encoding="utf-8")
torch.distributed.destroy_process_group()

"""The straggler callback on two ranks with the resiliency extension's arguments alone: no directory, no log."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.hang_guard(500)]
pytest.importorskip("lightning")

JOB = """
import json, logging, sys
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
import trackside
from trackside.bus import default_bus
from trackside.integrations.lightning import StragglerDetectionCallback

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        with trackside.section("work", gpu=False):
            return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

class Flush(Callback):
    def on_train_batch_end(self, *more):
        default_bus.flush(60)  # so that what was timed is there when the ranks exchange it

class Keep(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())

seen = []
logger = logging.getLogger("ranks")
logger.addHandler(Keep())
logger.setLevel("INFO")
stragglers = StragglerDetectionCallback(
    report_time_interval=0, calc_relative_gpu_perf=True, calc_individual_gpu_perf=False, num_gpu_perf_scores_to_log=2,
    gpu_relative_perf_threshold=0.0, gpu_individual_perf_threshold=0.0, stop_if_detected=False,
    enable_ptl_logging=False, logger_name="ranks", agree_every_steps=4,
)
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Flush(), stragglers],
)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
if trainer.global_rank == 0:
    print("SEEN" + json.dumps(seen))
"""


def test_without_a_directory(tmp_path):
    """Training runs to its end, rank 0 reports on the sections of both ranks, and no log is written."""
    program = tmp_path / "program.py"
    program.write_text(JOB)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRACKSIDE")}
    command = [sys.executable, "-W", "ignore", str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, timeout=450, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    work = [told for told in json.loads(line[4:]) if told.startswith("relative section work")]
    assert work
    assert all("rank 0 (" in told and "rank 1 (" in told for told in work)
    assert not list(tmp_path.rglob("*.tslog"))

"""One rank of a job: three sections a step, windows of five steps, an event log; one rank is struck in between."""

from __future__ import annotations

import os
import signal
import sys
import time

import trackside
from trackside.events import Source, set_process_source
from trackside.instruments import configure_sections, section, training_iteration

STEPS, WINDOW_STEPS = 30, 5
SLOW_S = 0.05  # large enough that noise makes no other rank as slow
WRITTEN_S = 60.0  # long enough for a busy machine; the test reads only the written log


def main():
    rank, world, folder, struck_at = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    set_process_source(Source.detect({}, run_id="run", rank=rank, world_size=world, host=f"node{rank}"))
    configure_sections(window_steps=WINDOW_STEPS)
    trackside.subscribe(trackside.EventLog(folder))
    for step in range(STEPS):
        if step == struck_at:
            trackside.flush(WRITTEN_S)
            os.kill(os.getpid(), signal.Signals[sys.argv[5]])
        with training_iteration(step):
            for name in ("data", "forward", "backward"):
                with section(name):
                    time.sleep(SLOW_S if (rank, name) == (2, "data") else 0.001)
    trackside.close(WRITTEN_S)
    assert not any(name.partition(".")[0] == "torch" for name in sys.modules), "somebody imported torch"


main()

"""
Train until killed: after each change of the open spans, flush the log and print the open spans.

Usage: killed_trainer.py DIRECTORY
"""

from __future__ import annotations

import itertools
import json
import sys

from trackside.bus import default_bus
from trackside.events import Heartbeat
from trackside.handlers import EventLog
from trackside.instruments import (
    application,
    checkpoint_save,
    model_forward,
    open_spans,
    training_iteration,
    training_loop,
    validation_loop,
)
from trackside.instruments._span import opened

LONG = {"application", "training_loop", "validation_loop", "checkpoint_save_sync"}


def say():
    """Log a heartbeat, flush, and print the open spans."""
    default_bus.log(Heartbeat(sequence=0, open_spans=open_spans()))
    assert default_bus.flush(30)
    found = [[span.name, span.start_ns] for span in opened().values()]
    long = [span for span in found if span[0] in LONG]
    short = [span for span in found[-1:] if span[0] not in LONG]
    print(json.dumps({"long": long, "short": short}), flush=True)


default_bus.subscribe(EventLog(sys.argv[1]))
with application(), training_loop():
    for step in itertools.count():
        with training_iteration(step), model_forward():
            say()
        block = validation_loop() if step % 2 else checkpoint_save(step)
        with block:
            say()

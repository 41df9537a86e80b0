"""Ways to hang for ever, for the real jobs of the test bed, and an end for those that do."""

import os
import signal
import threading
import time

import torch.distributed as dist

import trackside
from trackside.events import StallDetected

STALLED_AFTER_S = 3.0


def start(directory, *, hangs):
    """Turn telemetry on; of a job that *hangs*, stalls are seen early, and end it."""
    trackside.start(directory, stall_after_s=STALLED_AFTER_S if hangs else 60.0)
    trackside.subscribe(end_soon, to=StallDetected)


def end_soon(_):
    """End a job that hangs, once all of its ranks have said so."""
    threading.Timer(6.0, os.kill, (os.getpid(), signal.SIGKILL)).start()


def hang(cause, apart):
    """Block for ever, as *cause* says; *apart* is a group of all ranks, in whose barrier only one waits."""
    if cause == "hung in a barrier":
        wait_in_barrier(apart)
    {"hung in a lock": wait_for_lock}.get(cause, wait_for_storage)()


def wait_for_storage():
    """Block for ever."""
    while True:
        time.sleep(0.5)


def wait_for_lock():
    """Acquire a lock that is held."""
    lock = threading.Lock()
    with lock, lock:
        pass


def wait_in_barrier(apart):
    """Enter a barrier that no other rank enters."""
    dist.barrier(group=apart)

"""
One rank whose kernels go through the real cupti-python to an event log; the library below that is a stand-in.

Rank 5 takes 200 µs for each kernel of a matrix product where the others take 100 µs; of a second kernel all take 50 µs.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cupti import cupti

import trackside
from trackside.instruments import close_section_window, section, training_iteration

KERNEL = int(cupti.ActivityKind.CONCURRENT_KERNEL)
STEPS = 20


def launch(standin, name, ns):
    """Launch a kernel that takes *ns*; return whether CUPTI recorded it."""
    record = np.zeros(1, dtype=cupti.activity_kernel10_dtype)
    shape = {"block_x": 128, "block_y": 1, "block_z": 1, "grid_x": 4, "grid_y": 2, "grid_z": 1}
    times = {"kind": KERNEL, "start": 1000, "end": 1000 + ns, "name": ctypes.cast(name, ctypes.c_void_p).value}
    for field, value in {**shape, **times}.items():
        record[field] = value
    return standin.launch(KERNEL, record.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(record.nbytes))


def main(library, directory, rank):
    """Train for a window, and leave a log."""
    standin = ctypes.CDLL(library)
    product, copy = ctypes.c_char_p(b"gemm"), ctypes.c_char_p(b"copy")
    with trackside.start(directory, report=False):
        for step in range(STEPS):
            with training_iteration(step), section("forward", gpu=True):
                for _ in range(3):
                    assert launch(standin, product, 200_000 if rank == 5 else 100_000)
                assert launch(standin, copy, 50_000)
        close_section_window()
        assert not launch(standin, product, 1), "recorded outside of the section"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""CUPTI played by a library that is compiled for the tests: it keeps the kernels they launch until it is flushed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from trackside import implementation

KERNEL, MEMCPY = 10, 1

_names: dict[str, bytes] = {}
"""Kept for good, as CUPTI keeps the names that its records point to."""


class Record(ctypes.Structure):
    """The beginning of a record of a kernel; the fields as in CUPTI's header ``cupti_activity.h``."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("cacheConfig", ctypes.c_uint8),
        ("sharedMemoryConfig", ctypes.c_uint8),
        ("registersPerThread", ctypes.c_uint16),
        ("partitionedGlobalCacheRequested", ctypes.c_uint32),
        ("partitionedGlobalCacheExecuted", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("deviceId", ctypes.c_uint32),
        ("contextId", ctypes.c_uint32),
        ("streamId", ctypes.c_uint32),
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        ("staticSharedMemory", ctypes.c_int32),
        ("dynamicSharedMemory", ctypes.c_int32),
        ("localMemoryPerThread", ctypes.c_uint32),
        ("localMemoryTotal", ctypes.c_uint32),
        ("correlationId", ctypes.c_uint32),
        ("gridId", ctypes.c_int64),
        ("name", ctypes.c_char_p),
    )


def compiled(directory: Path, name: str) -> Path:
    """Compile the library into *directory* as *name*; return its path. Skip where it cannot be, or nothing calls it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if implementation != "compiled":
        pytest.skip("kernels are recorded by the compiled core")
    library = directory / name
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-shared", "-fPIC", "-Werror", f"-Wl,-soname,{name}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


class Standin:
    """The library at *path*, as a test sees it."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)

    def number(self, name: str) -> ctypes.c_int:
        """Return one of its variables."""
        return ctypes.c_int.in_dll(self.library, name)

    def launch(
        self, name: str = "gemm", ns: int = 100, *, kind: int = KERNEL, start: int = 1000, count: int = 1, **shape: int
    ) -> int:
        """Launch a kernel *count* times, on a grid of 4 × 2 × 1 by default; return how often it was recorded."""
        sizes = {"block": 128, "grid": 4, **shape}
        record = Record(kind=kind, start=start, end=start and start + ns, name=_names.setdefault(name, name.encode()))
        record.block[:] = sizes["block"], 1, 1
        record.grid[:] = sizes["grid"], 2, 1
        self.library.launch.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        recorded: int = self.library.launch(ctypes.byref(record), ctypes.sizeof(record), count)
        return recorded

    def take_buffer(self) -> int | None:
        """Take a buffer, as CUPTI does, and return its address; None if there is none."""
        taken = ctypes.c_void_p()
        self.library.take_buffer(ctypes.byref(taken))
        return taken.value

    def return_buffer(self, address: int, valid: int = 0) -> None:
        """Hand over a buffer with so many bytes of records in it."""
        self.library.return_buffer(ctypes.c_void_p(address), ctypes.c_size_t(valid))

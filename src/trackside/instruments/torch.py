"""Our spans in torch's profiler and in NVTX; the one module that imports torch, and not before it is asked to."""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trackside.events import ConfigError


def record_function() -> Callable[[str], Callable[[], object]]:
    """
    Return an annotator that shows each span in traces of ``torch.profiler``.

    Raises:
        ConfigError: if torch is not installed.
    """
    make: Callable[[str], Any] = _torch("record_function").profiler.record_function

    def annotate(name: str) -> Callable[[], object]:
        block = make(name)
        block.__enter__()
        return functools.partial(block.__exit__, None, None, None)

    return annotate


def nvtx() -> Callable[[str], Callable[[], object]]:
    """
    Return an annotator that shows each span as an NVTX range, for Nsight and the like.

    Raises:
        ConfigError: if torch is not installed, or was built without CUDA.
    """
    ranges = _torch("nvtx").cuda.nvtx
    try:
        ranges.range_push("trackside")
        ranges.range_pop()
    except RuntimeError as error:
        raise ConfigError("annotate", "nvtx", f"it needs a torch that was built with CUDA: {error}") from None

    def annotate(name: str) -> Callable[[], object]:
        ranges.range_push(name)
        return ranges.range_pop  # type: ignore[no-any-return]

    return annotate


class CudaEventTimer:
    """
    Times stretches of the current CUDA stream with pairs of events. It asks whether they are over, and never waits.

    Args:
        cuda: The module ``torch.cuda``.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._free: list[Any] = []

    def begin(self) -> Any:
        """Mark where a stretch begins; None while a graph is captured, where events mean something else."""
        if self._cuda.is_current_stream_capturing():
            return None
        pair = self._free.pop() if self._free else self._pair()
        pair[0].record()
        return pair

    def _pair(self) -> Any:
        make = self._cuda.Event
        return make(enable_timing=True), make(enable_timing=True)

    def end(self, mark: Any) -> None:
        """Mark where it ends."""
        mark[1].record()

    def elapsed_ns(self, mark: Any) -> int | None:
        """Return how long it took; None while the GPU is not yet there."""
        if not mark[1].query():
            return None
        taken_ms: float = mark[0].elapsed_time(mark[1])
        self._free.append(mark)
        return round(taken_ms * 1e6)


def cuda_event_timer() -> CudaEventTimer:
    """
    Return what times sections on the GPU.

    Raises:
        RuntimeError: if that cannot be done, with the reason.
    """
    try:
        import torch  # noqa: PLC0415  whoever does not ask for it need not have it
    except ImportError:
        raise RuntimeError("torch is not installed") from None
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    return CudaEventTimer(torch.cuda)


class RankGroup:
    """
    A gloo group of all ranks, of its own: for those who ask for a collective, and never for anybody else.

    Making one is a collective itself.

    Args:
        timeout_s: How long a rank waits for the others before it gives up with an error.
    """

    def __init__(self, timeout_s: float) -> None:
        self._torch = _torch("a gather")
        self._distributed = self._torch.distributed
        self._group = self._distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))
        self.rank: int = self._distributed.get_rank()
        self.size: int = self._distributed.get_world_size()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the *data* of every rank, in order; a collective."""
        make = self._torch.tensor
        kind = self._torch.uint8
        sizes = [make([0]) for _ in range(self.size)]
        self._distributed.all_gather(sizes, make([len(data)]), group=self._group)
        longest = max(int(size) for size in sizes)
        rows = [self._torch.zeros(longest, dtype=kind) for _ in range(self.size)]
        padded = self._torch.frombuffer(bytearray(data.ljust(longest, bytes(1))), dtype=kind)
        self._distributed.all_gather(rows, padded, group=self._group)
        return [bytes(row.tolist())[: int(size)] for row, size in zip(rows, sizes, strict=True)]

    def largest(self, value: int) -> int:
        """Return the largest *value* of all ranks; a collective."""
        cell = self._torch.tensor([value])
        self._distributed.all_reduce(cell, op=self._distributed.ReduceOp.MAX, group=self._group)
        return int(cell)

    def close(self) -> None:
        """Let the group go."""
        self._distributed.destroy_process_group(self._group)


def not_compiled() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for what ``torch.compile`` must leave alone: reading a clock is no part of a graph.

    Raises:
        ConfigError: if torch is not installed.
    """
    disable: Callable[[Callable[..., Any]], Callable[..., Any]] = _torch("instrument()").compiler.disable
    return disable


def backward_callback() -> Callable[[Callable[[], None]], None]:
    """
    Return what queues a function, in a gradient's hook, to be called when the backward pass has ended.

    The autograd engine's own queue, which distributed data parallelism uses too.

    Raises:
        ConfigError: if torch is not installed.
    """
    engine = _torch("instrument()").autograd.Variable._execution_engine  # noqa: SLF001  there is no public name for it
    queue: Callable[[Callable[[], None]], None] = engine.queue_callback
    return queue


def is_compiling() -> bool:
    """Return whether torch is reading the code that asks, to compile it: then it must do nothing of its own."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def monitor() -> Any:
    """
    Return ``torch.monitor``.

    Raises:
        ConfigError: if torch is not installed.
    """
    return _torch("torch.monitor").monitor


def distributed() -> ModuleType:
    """
    Return ``torch.distributed``.

    Raises:
        ConfigError: if torch is not installed.
    """
    found: ModuleType = _torch("torch.distributed").distributed
    return found


def is_distributed() -> bool:
    """Return whether this process has joined others through torch; torch is not imported for the question."""
    known = sys.modules.get("torch.distributed")
    return known is not None and known.is_available() and known.is_initialized()


def _torch(asked: str) -> Any:
    try:
        import torch  # noqa: PLC0415  whoever does not ask for it need not have it
    except ImportError:
        raise ConfigError("annotate", asked, "it needs torch: pip install 'trackside[torch]'") from None
    return torch

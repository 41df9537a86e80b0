"""Spans in torch's profiler and in NVTX. The one module that imports torch, and only when a function needs it."""

from __future__ import annotations

import datetime
import functools
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trackside.core import complain, is_from_signal_handler
from trackside.events import ConfigError
from trackside.events._errors import needing_extra
from trackside.instruments._span import set_annotator


def record_function() -> Callable[[str], Callable[[], object]]:
    """
    Return an annotator that shows each span in traces of ``torch.profiler``.

    Raises:
        ConfigError: if torch is not installed.
    """
    make: Callable[[str], Any] = torch_module("record_function").profiler.record_function

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
    ranges = torch_module("nvtx").cuda.nvtx
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
    Times stretches of the current CUDA stream with pairs of events. It only queries events, and never waits for one.

    Args:
        cuda: The module ``torch.cuda``.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._free: list[Any] = []
        self._all: list[Any] = []
        """Every pair that was made: destroying an event when CUDA no longer works would end the process."""

    def begin(self) -> Any:
        """Record the event that begins a stretch; None while a graph is captured, whose events measure no time."""
        if self._cuda.is_current_stream_capturing():
            return None
        pair = self._free.pop() if self._free else self._pair()
        pair[0].record()
        return pair

    def _pair(self) -> Any:
        make = self._cuda.Event
        pair = make(enable_timing=True), make(enable_timing=True)
        self._all.append(pair)
        return pair

    def end(self, mark: Any) -> None:
        """Record the event that ends the stretch."""
        mark[1].record()

    def elapsed_ns(self, mark: Any) -> int | None:
        """Return the length of the stretch; None until the GPU has reached its end."""
        if not mark[1].query():
            return None
        taken_ms: float = mark[0].elapsed_time(mark[1])
        self._free.append(mark)
        return round(taken_ms * 1e6)

    def after_fork(self) -> None:
        """Keep the parent's events in a forked child, even during its exit, because CUDA does not work there."""
        import ctypes  # noqa: PLC0415  only a child of a process that timed its GPU needs it

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def cuda_event_timer() -> CudaEventTimer:
    """
    Return a timer of sections on the GPU.

    Raises:
        RuntimeError: if there can be none; its text is the reason.
    """
    try:
        import torch  # noqa: PLC0415  needed only by those who ask for it
    except ImportError:
        raise RuntimeError("torch is not installed") from None
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    return CudaEventTimer(torch.cuda)


def watch_profiler(before: Callable[[], object], after: Callable[[], object]) -> Callable[[], object]:
    """
    Watch when torch's profiler takes CUPTI, and when it releases CUPTI.

    Args:
        before: Called before the profiler prepares to record the GPU, its warm-up included.
        after: Called when the profiler has ended.

    Returns:
        A function that ends the watching.
    """
    module: Any = sys.modules.get("torch.autograd.profiler")
    if module is None:
        return _nothing
    profile = module.profile
    prepare, leave = profile._prepare_trace, profile.__exit__  # noqa: SLF001  there is no public place to learn of it

    @functools.wraps(prepare)
    def preparing(profiler: Any) -> Any:
        if not any(activity.name == "CUDA" for activity in profiler.kineto_activities):
            return prepare(profiler)
        before()
        try:
            return prepare(profiler)
        except BaseException:
            after()
            raise

    @functools.wraps(leave)
    def leaving(profiler: Any, *args: Any) -> Any:
        try:
            return leave(profiler, *args)
        finally:
            after()

    def end() -> None:
        if profile._prepare_trace is preparing:  # noqa: SLF001
            profile._prepare_trace, profile.__exit__ = prepare, leave  # noqa: SLF001

    profile._prepare_trace, profile.__exit__ = preparing, leaving  # noqa: SLF001
    return end


def _nothing() -> None:
    pass


def watch_backward(
    loss: Any, computed: Callable[[], object], synchronized: Callable[[], object]
) -> Callable[[], object] | None:
    """
    Watch when a backward pass has computed its own gradients, and when it has those of the other ranks.

    Distributed training waits for the gradients of other ranks in a callback at the end of the pass. *computed* is
    called just before that, *synchronized* just after.

    Args:
        loss: The tensor whose ``backward()`` is about to be called.
        computed: Called when this rank's gradients are there.
        synchronized: Called when those of the other ranks are there.

    Returns:
        A function that ends the watching; None if the CPU's clock cannot separate the two, for example on a GPU.
    """
    if not getattr(loss, "requires_grad", False) or loss.device.type != "cpu" or is_compiling():
        return None
    queue_callback = sys.modules["torch"].autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  as in FSDP

    def at_end() -> None:
        computed()
        queue_callback(synchronized)  # behind the callbacks of distributed training

    forget: Callable[[], object] = loss.register_hook(lambda _gradient: queue_callback(at_end)).remove
    return forget


class RankGroup:
    """
    A gloo group of all ranks, apart from the job's own groups; made only for callers that need a collective.

    Making one is a collective itself.

    Args:
        timeout_s: How long a rank waits for the others before it gives up with an error.
    """

    def __init__(self, timeout_s: float) -> None:
        self._torch = torch_module("a gather")
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
        """Destroy the group."""
        self._distributed.destroy_process_group(self._group)


def not_compiled() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for functions that ``torch.compile`` must skip: reading a clock is no part of a graph.

    Raises:
        ConfigError: if torch is not installed.
    """
    disable: Callable[[Callable[..., Any]], Callable[..., Any]] = torch_module("instrument()").compiler.disable
    return disable


def has_gradients() -> bool:
    """Return whether torch, if it is loaded, records what is computed for a backward pass."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.is_grad_enabled())


def is_compiling() -> bool:
    """Return whether torch is tracing the calling code to compile it: then this code must do nothing of its own."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def monitor() -> Any:
    """
    Return ``torch.monitor``.

    Raises:
        ConfigError: if torch is not installed.
    """
    return torch_module("torch.monitor").monitor


def distributed() -> ModuleType:
    """
    Return ``torch.distributed``.

    Raises:
        ConfigError: if torch is not installed.
    """
    found: ModuleType = torch_module("torch.distributed").distributed
    return found


def has_cuda() -> bool:
    """Return whether torch finds a CUDA device."""
    return bool(torch_module("instrument()").cuda.is_available())


def is_distributed() -> bool:
    """Return whether this process has joined others through torch; does not import torch."""
    known = sys.modules.get("torch.distributed")
    is_initialized = getattr(known, "is_initialized", None)  # not there yet while another thread imports it
    return is_initialized is not None and bool(known.is_available() and is_initialized())  # type: ignore[union-attr]


def place_in_group() -> dict[str, int]:
    """Return ``rank`` and ``world_size`` as torch.distributed has them; empty if it is not initialised."""
    if not is_distributed():
        return {}
    joined = distributed()
    return {"rank": joined.get_rank(), "world_size": joined.get_world_size()}


def agree_in_group(key: str, value: str) -> str:
    """Return the *value* that the first process of the group gave for *key*; without a store, this process's own."""
    try:
        store = distributed().distributed_c10d._get_default_store()  # noqa: SLF001  there is no public name for it
        agreed: bytes = store.compare_set(key, "", value)
        return agreed.decode()
    except Exception as error:  # a backend without a store, or a store that is gone
        if is_from_signal_handler(error):
            raise
        complain("the processes of this job cannot agree on %s: %s", key, error)
        return value


_COLLECTIVE_FIELDS: Final = (
    *("pg_name", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "state", "is_p2p"),
    *("time_created_ns", "input_sizes", "output_sizes"),
)


def latest_collectives(most: int = 8) -> list[dict[str, Any]]:
    """
    Return the latest collectives that torch's flight recorder has of this rank, the latest last.

    Empty if torch has no process group, no recorder or an empty one (``TORCH_NCCL_TRACE_BUFFER_SIZE`` turns it on for
    NCCL).
    """
    if not is_distributed():
        return []
    backend = getattr(torch_module("the flight recorder")._C, "_distributed_c10d", None)  # noqa: SLF001  it has no other
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(backend, name, None)
        if dump is None:
            continue
        try:
            entries = json.loads(dump()).get("entries", [])
            found = [{key: entry[key] for key in _COLLECTIVE_FIELDS if key in entry} for entry in entries[-most:]]
        except Exception:  # noqa: S112  torch's own debugging aid, of a version that we do not know
            continue
        if found:
            return found
    return []


def torch_module(asked: str) -> Any:
    """
    Import torch and return it; an error names *asked* as the feature that needs it.

    Raises:
        MissingExtraError: if torch is not installed.
    """
    with needing_extra(f"annotate={asked!r}", "torch"):
        import torch  # noqa: PLC0415  needed only by those who ask for it
    return torch


_ANNOTATORS: Final[dict[str, Callable[[], Callable[[str], Callable[[], object]]]]] = {
    "record_function": record_function,
    "nvtx": nvtx,
}


def annotate(how: str | None) -> None:
    """
    Show every span that opens from now on in a profiler too, whether or not a handler wants it.

    Args:
        how: ``record_function`` for torch's profiler, ``nvtx`` for Nsight, or None for neither.

    Raises:
        ConfigError: if *how* is none of these, or torch cannot do it.
    """
    if how is None:
        set_annotator(None)
    elif how in _ANNOTATORS:
        set_annotator(_ANNOTATORS[how]())
    else:
        raise ConfigError("annotate", how, 'give "record_function", "nvtx" or None')

"""Use and power of one GPU, by NVML; the one module that imports pynvml (nvidia-ml-py), and only when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trackside.events import gauge_names
from trackside.instruments._gauges import MachineGauge

_MILLI = 1e-3
_MEGA = 1e6


def gauges(local_rank: int, environ: Mapping[str, str] = os.environ) -> list[MachineGauge]:
    """
    Return the gauges of the GPU of one rank.

    Args:
        local_rank: The rank within the node; negative if it is not known.
        environ: The environment with ``CUDA_VISIBLE_DEVICES``, which identifies the rank's GPU.

    Raises:
        RuntimeError: if there is nothing to read, with the reason.
    """
    try:
        import pynvml  # noqa: PLC0415  needed only by those who ask for it
    except ImportError:
        raise RuntimeError("nvidia-ml-py is not installed") from None
    try:
        return gauges_of(pynvml, device_of(local_rank, environ.get("CUDA_VISIBLE_DEVICES")))
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML: {error}") from None


def device_of(local_rank: int, visible: str | None) -> int | str:
    """
    Return the index or the UUID of the GPU that a rank uses.

    Args:
        local_rank: The rank within the node; negative if it is not known.
        visible: The value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.

    Raises:
        RuntimeError: if no GPU is visible.
    """
    if visible is None:
        return max(0, local_rank)
    devices = [name.strip() for name in visible.split(",")]
    if devices[0] in {"", "-1"}:
        raise RuntimeError("CUDA_VISIBLE_DEVICES hides every GPU")
    # If the launcher shows each rank only its own GPU, the list has one entry.
    device = devices[local_rank] if 0 <= local_rank < len(devices) else devices[0]
    return int(device) if device.isdigit() else device


def gauges_of(pynvml: Any, device: int | str) -> list[MachineGauge]:
    """
    Return the gauges that the module *pynvml* reads of *device*, without those that the GPU does not report now.

    Raises:
        pynvml.NVMLError: if there is no driver or no such device.
    """
    pynvml.nvmlInit()
    if isinstance(device, int):
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
    else:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device)
    return [gauge for gauge in _gauges(pynvml, handle) if _tells(gauge.read, pynvml.NVMLError)]


def _tells(read: Callable[[], object], refusal: type[Exception]) -> bool:
    try:
        read()
    except refusal:
        return False
    return True


def _gauges(pynvml: Any, handle: Any) -> Iterator[MachineGauge]:
    def clock(kind: int) -> Callable[[], float]:
        return lambda: pynvml.nvmlDeviceGetClockInfo(handle, kind) * _MEGA

    yield MachineGauge(
        gauge_names.GPU_UTILIZATION,
        "1",
        "share of the time in which any kernel ran",
        lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    )
    yield MachineGauge(
        gauge_names.GPU_MEMORY,
        "By",
        "memory of the GPU that is allocated",
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    )
    yield MachineGauge(
        gauge_names.GPU_POWER, "W", "power drawn", lambda: pynvml.nvmlDeviceGetPowerUsage(handle) * _MILLI
    )
    yield MachineGauge(
        gauge_names.GPU_ENERGY,
        "J",
        "energy drawn since the driver was loaded",
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _MILLI,
    )
    yield MachineGauge(
        gauge_names.GPU_TEMPERATURE,
        "Cel",
        "temperature of the GPU",
        lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    )
    yield MachineGauge(gauge_names.GPU_CLOCK_SM, "Hz", "clock of the multiprocessors", clock(pynvml.NVML_CLOCK_SM))
    yield MachineGauge(gauge_names.GPU_CLOCK_MEMORY, "Hz", "clock of the memory", clock(pynvml.NVML_CLOCK_MEM))

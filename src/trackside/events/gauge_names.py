"""The names of the gauges of the machine, of a process and of a rank's GPU: OpenTelemetry's, where it has one."""

from __future__ import annotations

from typing import Final

PROCESS_CPU: Final = "process.cpu.utilization"
PROCESS_MEMORY: Final = "process.memory.usage"
SYSTEM_CPU: Final = "system.cpu.utilization"
SYSTEM_MEMORY: Final = "system.memory.usage"

GPU_UTILIZATION: Final = "hw.gpu.utilization"
GPU_MEMORY: Final = "hw.gpu.memory.usage"
GPU_POWER: Final = "hw.gpu.power"
GPU_ENERGY: Final = "hw.gpu.energy"
GPU_TEMPERATURE: Final = "hw.gpu.temperature"
GPU_CLOCK_SM: Final = "hw.gpu.clock.sm"
GPU_CLOCK_MEMORY: Final = "hw.gpu.clock.memory"

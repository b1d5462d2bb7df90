"""Prints the state of this machine's NVIDIA GPUs as JSON; a process of its own, since a wedged driver never returns."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

RECENT_S = 5
MIB = 2**20


def device(nvml: Any, index: int) -> dict[str, Any]:
    """One GPU; what the driver does not offer is null."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    rates = ask("nvmlDeviceGetUtilizationRates")
    # The first version counts what the driver keeps for itself as used: 615 MiB on an H200 that nobody uses.
    second = getattr(nvml, "nvmlMemory_v2", None)
    memory = (second and ask("nvmlDeviceGetMemoryInfo", second)) or ask("nvmlDeviceGetMemoryInfo")
    pci = ask("nvmlDeviceGetPciInfo")
    return {
        "index": index,
        "uuid": text(ask("nvmlDeviceGetUUID")),
        "name": text(ask("nvmlDeviceGetName")),
        "pci": text(pci.busId) if pci else None,
        "utilisation_pct": rates.gpu if rates else None,
        "memory_utilisation_pct": rates.memory if rates else None,
        "memory_used_mib": memory.used // MIB if memory else None,
        "memory_total_mib": memory.total // MIB if memory else None,
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "power_w": watts(ask("nvmlDeviceGetPowerUsage")),
        "power_limit_w": watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "throttle_mask": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "uncorrected_ecc_errors": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        "processes": processes(ask),
    }


def processes(ask: Callable[..., Any]) -> list[dict[str, Any]]:
    """The processes that compute on it; `sm_pct` is the latest sample of the last seconds."""
    samples = ask("nvmlDeviceGetProcessUtilization", int((time.time() - RECENT_S) * 1e6)) or []
    latest = {sample.pid: sample.smUtil for sample in sorted(samples, key=lambda s: s.timeStamp)}
    return [
        {
            "pid": process.pid,
            "memory_mib": process.usedGpuMemory // MIB if process.usedGpuMemory else None,
            "sm_pct": latest.get(process.pid),
        }
        for process in ask("nvmlDeviceGetComputeRunningProcesses") or []
    ]


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def main() -> None:
    """Exit code 3: there is no pynvml to ask with."""
    try:
        import pynvml
    except ImportError:
        sys.exit(3)
    pynvml.nvmlInit()
    devices = [device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps({"driver": text(pynvml.nvmlSystemGetDriverVersion()), "devices": devices}))


if __name__ == "__main__":
    main()

"""The machine's NVIDIA GPUs: how busy, how full, how slowed down, whose, and the driver's error reports (Xid)."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError, NodeTarget, NotApplicable
from nsadiag.deadlines import programs
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.secrets.masking import mask_text

TIMEOUT_S = 5.0
QUERY = Path(__file__).with_name("nvml_query.py")
# Column of nvidia-smi to key of gpu.json. The last two are not known to every driver.
COLUMNS = {
    "index": "index", "uuid": "uuid", "name": "name", "pci.bus_id": "pci",
    "utilization.gpu": "utilisation_pct", "utilization.memory": "memory_utilisation_pct",
    "memory.used": "memory_used_mib", "memory.total": "memory_total_mib",
    "clocks.sm": "sm_clock_mhz", "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w", "power.limit": "power_limit_w", "temperature.gpu": "temperature_c",
    "clocks_throttle_reasons.active": "throttle_mask",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_ecc_errors",
}  # fmt: skip
UNSURE_COLUMNS = 2
THROTTLE_REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[\w:.]+)\): (?P<xid>\d+)(?P<text>.*)")
MOST_XIDS = 50
KERNEL_LOG_BYTES = 1 << 22


def gpu(target: NodeTarget) -> dict[str, Any]:
    """gpu.json: utilisation, memory, clocks, throttling, power, processes and Xid errors of the machine's GPUs."""
    if not is_there():
        raise NotApplicable("no NVIDIA driver on this machine")
    document, by = state()
    xids, xid_gap = xid_errors()
    write_json(target.directory.gpu, {**document, "by": by, "xid_errors": xids, "xid_gap": xid_gap})
    return {"by": by, "xid": xid_gap or "readable"}


def is_there() -> bool:
    """Whether the machine has NVIDIA's driver."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def state() -> tuple[dict[str, Any], str]:
    """`driver` and `devices`, and who told: pynvml or nvidia-smi. Raises CaptureError if neither did."""
    done = _run([sys.executable, str(QUERY)])
    if isinstance(done, str) and done.startswith("{"):
        document, by = json.loads(done), "pynvml"
    else:
        document, by = _by_nvidia_smi(), "nvidia-smi"
    for device in document["devices"]:
        mask = device.pop("throttle_mask", None)
        device["throttled_by"] = (
            None if mask is None else [name for bit, name in THROTTLE_REASONS.items() if mask & bit]
        )
    return document, by


def gpu_activity(document: Mapping[str, Any]) -> dict[int, float]:
    """By process, the busiest share (0 to 100) of a GPU that gpu.json shows for it.

    The share of its own where the driver tells, else that of the whole device it computes on. A kernel that
    waits for a peer, such as NCCL's, counts as busy: it proves that kernels run, not that they get anywhere.
    """
    shares: dict[int, float] = {}
    for device in document.get("devices", []):
        for process in device.get("processes", []):
            own = process.get("sm_pct")
            share = own if own is not None else device.get("utilisation_pct")
            if share is not None:
                shares[process["pid"]] = max(shares.get(process["pid"], 0.0), float(share))
    return shares


def _run(command: Sequence[str]) -> str | None:
    """Its stdout; None if it failed. Raises CaptureError if it did not return: so does a wedged driver."""
    try:
        done = programs.run(command, seconds=TIMEOUT_S)
    except TimeoutError:
        raise CaptureError(f"the NVIDIA driver gave no answer in {TIMEOUT_S:g} s") from None
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _by_nvidia_smi() -> dict[str, Any]:
    if shutil.which("nvidia-smi") is None:
        raise CaptureError("neither pynvml nor nvidia-smi is installed")
    names = list(COLUMNS)
    table = _table("--query-gpu=", names) or _table("--query-gpu=", names[:-UNSURE_COLUMNS])
    if table is None:
        raise CaptureError("nvidia-smi failed")
    apps = _table("--query-compute-apps=", ["gpu_uuid", "pid", "used_memory"]) or []
    shares = _shares(_run(["nvidia-smi", "pmon", "-c", "1", "-s", "u"]) or "")
    devices = [dict(zip(COLUMNS.values(), row, strict=False)) for row in table]
    for device in devices:
        device["processes"] = [
            {"pid": pid, "memory_mib": used, "sm_pct": shares.get((device["index"], pid))}
            for uuid, pid, used in apps
            if uuid == device["uuid"]
        ]
    return {"driver": None, "devices": devices}


def _table(option: str, columns: list[str]) -> list[list[Any]] | None:
    text = _run(["nvidia-smi", option + ",".join(columns), "--format=csv,noheader,nounits"])
    if text is None:
        return None
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [[_value(cell.strip()) for cell in row] for row in rows if len(row) == len(columns)]


def _value(cell: str) -> int | float | str | None:
    """`[N/A]` and the like are null."""
    if cell.startswith("[") or cell == "N/A":
        return None
    with contextlib.suppress(ValueError):
        return int(cell, 0)
    with contextlib.suppress(ValueError):
        return float(cell)
    return cell


def _shares(text: str) -> dict[tuple[int, int], int]:
    """`nvidia-smi pmon`: by device and process, percent of the multiprocessors."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {
        (int(row[0]), int(row[1])): int(row[3])
        for row in rows
        if len(row) > 3 and row[1].isdigit() and row[3].isdigit()
    }


def xid_errors() -> tuple[list[dict[str, Any]], str | None]:
    """The driver's latest error reports in the kernel's log, and what kept us from reading it, if anything."""
    lines, gap = kernel_log()
    found = []
    for t_s, line in lines:
        match = XID.search(line)
        if match:
            text = mask_text(match["text"].lstrip(", "))
            found.append({"t_boot_s": t_s, "pci": match["pci"], "xid": int(match["xid"]), "text": text})
    return found[-MOST_XIDS:], gap


def kernel_log() -> tuple[list[tuple[float | None, str]], str | None]:
    """Seconds since boot and text of each message, oldest first."""
    try:
        return list(_kmsg()), None
    except OSError as error:
        text = _quietly(
            ["journalctl", "--dmesg", "--no-pager", "--quiet", "--lines", "5000", "--output", "cat"]
        )
        if text:
            return [(None, line) for line in text.splitlines()], None
        return (
            [],
            f"the kernel's log may not be read: {error.strerror} (/dev/kmsg; it needs root or CAP_SYSLOG)",
        )


def _quietly(command: Sequence[str]) -> str | None:
    try:
        return _run(command)
    except CaptureError:
        return None


def _kmsg() -> list[tuple[float | None, str]]:
    """Each read is one record: `priority,number,microseconds,flags;text`."""
    records, size = [], 0
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while size < KERNEL_LOG_BYTES:
            try:
                record = os.read(handle, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while it was read
            size += len(record)
            head, _, text = record.partition(";")
            fields = head.split(",")
            when = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else None
            records.append((when, text.splitlines()[0] if text else ""))
    finally:
        os.close(handle)
    return records

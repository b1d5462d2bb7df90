"""The memory that a process may have, how often it met that limit, and who waits for what: cgroups v1 and v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")
PRESSURES = ("cpu", "io", "memory")
UNLIMITED = 1 << 60  # v1 writes a number near 2**63 for "no limit"


def cgroup(pid: int) -> dict[str, Any]:
    """`limit_bytes` (null: none), `used_bytes`, `oom_kills`, and the files they are from; null where none tells."""
    return read_folders(*folders(pid))


def folders(pid: int) -> tuple[Path | None, Path | None]:
    """The process's cgroup directories: in the unified hierarchy, and in v1's memory controller."""
    paths = _paths(pid)
    unified = _folder(ROOT, paths.get("")) or _folder(ROOT / "unified", paths.get(""))
    return unified, _folder(ROOT / "memory", paths.get("memory"))


def read_folders(unified: Path | None, memory: Path | None) -> dict[str, Any]:
    """The same as `cgroup`, of a process that may be gone by now."""
    two = _version_2(unified) if unified else {}
    one = _version_1(memory) if memory else {}
    # On a machine with both, memory is counted by the one that has the controller.
    counted = one if two.get("used_bytes") is None and one else two
    return {
        **{key: counted.get(key) for key in ("version", "limit_bytes", "used_bytes", "oom_kills", "events")},
        "pressure": {name: _pressure(name, unified) for name in PRESSURES},
    }


def _paths(pid: int) -> dict[str, str]:
    """Controller to path; the unified hierarchy has the empty name."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.split(":", 2) for line in lines)
    return {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}


def _folder(root: Path, path: str | None) -> Path | None:
    """Inside a container the path may be the host's, while the mount shows only the container's own part."""
    if path is None or not root.is_dir():
        return None
    inside = root / path.lstrip("/")
    return inside if inside.is_dir() else root


def _version_2(folder: Path) -> dict[str, Any]:
    events = _pairs(folder / "memory.events")
    return {
        "version": 2,
        "limit_bytes": _number(folder / "memory.max"),
        "used_bytes": _number(folder / "memory.current"),
        "oom_kills": events.get("oom_kill"),
        "events": events,
    }


def _version_1(folder: Path) -> dict[str, Any]:
    limit = _number(folder / "memory.limit_in_bytes")
    events = _pairs(folder / "memory.oom_control")
    return {
        "version": 1,
        "limit_bytes": limit if limit is not None and limit < UNLIMITED else None,
        "used_bytes": _number(folder / "memory.usage_in_bytes"),
        "oom_kills": events.get("oom_kill"),
        "events": {**events, "failcnt": _number(folder / "memory.failcnt")},
    }


def _pressure(name: str, unified: Path | None) -> dict[str, dict[str, float]] | None:
    """Pressure-stall figures of the cgroup, else of the whole machine: share of time in which some, or all, had to wait (percent)."""
    own = _text(unified / f"{name}.pressure") if unified else None
    text = own or _text(Path("/proc/pressure") / name)
    if text is None:
        return None
    found = {}
    for line in text.splitlines():
        who, *values = line.split()
        found[who] = {key: float(value) for key, value in (pair.split("=") for pair in values)}
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None


def _pairs(path: Path) -> dict[str, int]:
    words = [line.split() for line in (_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}

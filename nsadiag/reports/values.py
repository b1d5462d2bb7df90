"""Takes what JSON holds for what it should be, or for nothing: no single value fails a report."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nsadiag.evidence.documents.shapes import LARGEST
from nsadiag.evidence.secrets.command_line import shortened


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def texts(value: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in mapping(value).items() if item is not None}


def number(value: Any) -> float | None:
    """A finite number or None: JSON in the wild holds NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) >= LARGEST:
        return None
    return float(value) if math.isfinite(value) else None


def whole(value: Any) -> int | None:
    finite = number(value)
    return None if finite is None else int(finite)


def command(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(shortened([str(word) for word in value]))
    return tuple(shortened([value])) if isinstance(value, str) and value else ()


def signal_name(value: Any) -> str | None:
    """`SIGKILL` from 9, -9 or "SIGKILL"; None from 0, which is no signal."""
    code = whole(value)
    if code is None:
        return text(value)
    try:
        return signal.Signals(abs(code)).name if code else None
    except ValueError:
        return f"signal {abs(code)}"


def seconds_between(started_at: str | None, ended_at: str | None) -> float | None:
    try:
        # Python 3.10 does not read the Z of UTC.
        start, end = (
            datetime.fromisoformat((t or "").replace("Z", "+00:00")) for t in (started_at, ended_at)
        )
        return (end - start).total_seconds()
    except (ValueError, TypeError):
        return None

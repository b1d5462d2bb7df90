"""The settings of an armed environment: a line of JSON in its .pth file, and variables that come first.

Standard library only: ranks read this as they start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from json import dumps, loads
from typing import Any

PTH = "nsadiag-armed.pth"
MARK = "# nsadiag armed: "  # the rest of that line is JSON
# In the environment: "0" leaves a process alone in an armed environment, "1" arms one by its environment alone.
SWITCH = "NSADIAG_ARMED"
OUT, QUOTA, METRICS, NOTIFY = (
    "NSADIAG_ARMED_OUT",
    "NSADIAG_ARMED_QUOTA",
    "NSADIAG_ARMED_METRICS",
    "NSADIAG_NOTIFY",
)
# In the environment of an armed rank, and of what it starts: the job that it belongs to.
JOB = "NSADIAG_ARMED_JOB"
# In the environment of a watcher: its settings.
SETTINGS = "NSADIAG_ARMED_SETTINGS"
QUOTA_MIB = 200


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that was said to `nsadiag arm`; `python` and `package` are those of the nsadiag that watches."""

    version: str
    python: str
    package: str  # the folder that holds nsadiag
    out: str = ""  # the folder of bundles; empty: the user's own
    quota_mib: int = QUOTA_MIB  # of all bundles there together
    notify: tuple[str, ...] = ()
    metrics: str = ""  # a file; empty: none

    def to_json(self) -> str:
        return dumps(asdict(self))


def settings_in(text: str) -> Settings:
    """By the text of a .pth file. Raises ValueError for one that nsadiag has not written."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), "")
    return settings_of(loads(line.removeprefix(MARK)))


def settings_of(document: Any) -> Settings:
    """By a JSON object; keys of other versions are passed over. Raises ValueError where it is none."""
    if not isinstance(document, dict):
        raise ValueError("no settings")
    known = {name: document[name] for name in Settings.__dataclass_fields__ if name in document}
    try:
        return Settings(**{**known, "notify": tuple(map(str, known.get("notify", ())))})
    except TypeError as error:
        raise ValueError(str(error)) from None


def with_variables(settings: Settings, environment: Mapping[str, str] | None = None) -> Settings:
    """The same, with what the environment says instead."""
    found = os.environ if environment is None else environment
    said: dict[str, Any] = asdict(settings)
    said["out"] = found.get(OUT) or settings.out
    said["metrics"] = found.get(METRICS) or settings.metrics
    said["notify"] = tuple(_lines(found.get(NOTIFY, "")) or settings.notify)
    quota = found.get(QUOTA, "")
    said["quota_mib"] = int(quota) if quota.isdigit() else settings.quota_mib
    return Settings(**said)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]

"""Processes that follow the ranks of a rehearsal, forked from the same process and kept apart: the program on one rank, as it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from nsadiag.evidence.rehearsal.namespaces import Apart


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One of them. `ended`: the file that comes to hold its exit code."""

    argv: Sequence[str]
    env: Mapping[str, str]
    ended: str


def to_json(every: Sequence[Beside]) -> str:
    """The variable `BESIDE`."""
    return json.dumps([asdict(each) for each in every])


def asked_beside(text: str, apart: Apart | None) -> list[Beside]:
    """Those of the variable; none where they could not be kept apart."""
    return [Beside(**each) for each in json.loads(text)] if apart is not None else []

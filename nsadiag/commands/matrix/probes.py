"""The probes that a matrix needs."""

from __future__ import annotations

from typing import Any

from nsadiag.spec import Matrix


def probes_of(matrix: Matrix) -> str:
    """The matrix's probes, and the one that comparing cells needs."""
    wanted = matrix.parity is not None or any(compares(h) for h in matrix.hypotheses)
    if not wanted or "parity" in matrix.probes.split(","):
        return matrix.probes
    return "parity" if matrix.probes == "none" else f"{matrix.probes},parity"


def compares(hypothesis: Any) -> bool:
    """Whether the claim is about cells that should compute the same."""
    return not hypothesis.not_tested and hypothesis.criterion()["form"] == "parity"

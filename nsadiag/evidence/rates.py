"""Rates as a person reads them; standard library only."""

from __future__ import annotations


def rate(per_s: float) -> str:
    """`1,270`, `19.5`, `0.0123`: three significant digits, and never an exponent."""
    if not per_s > 0:
        return "0"
    rounded = float(f"{per_s:.3g}")
    if rounded >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:.3g}" if rounded >= 1e-4 else f"{rounded:.9f}".rstrip("0").rstrip(".") or "0"

"""The conclusions of a matrix: its claims, the causes of failures, and the cells that compute something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsadiag.reports import values
from nsadiag.reports.model import STATUSES, Cause, Claim, ParityRow

DOCUMENTS = ("hypotheses", "attribution", "parity", "scaling")


def claims(document: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The claims, confirmed ones first, then refuted, then undecided ones; each in the order of the spec."""
    found = [
        Claim(
            text=values.text(item.get("claim")) or "",
            source=values.text(item.get("source")) or "",
            status=values.text(item.get("status")) or "not tested",
            because=values.text(item.get("because")) or "",
            confirmed_if=values.text(item.get("confirmed_if")) or "",
            cells=_ids(item.get("cells")),
        )
        for item in values.items(document.get("hypotheses"))
    ]
    order = {status: place for place, status in enumerate(STATUSES)}
    return tuple(sorted(found, key=lambda claim: order.get(claim.status, len(order))))


def causes(document: Mapping[str, Any]) -> tuple[Cause, ...]:
    return tuple(
        Cause(
            cls=values.text(item.get("class")) or "unknown",
            status=values.text(item.get("status")) or "",
            words=values.text(item.get("words")) or "",
            cells=_ids(item.get("cells")),
            command=values.text(item.get("command")) or "",
        )
        for item in values.items(document.get("attribution"))
    )


def parity(document: Mapping[str, Any]) -> tuple[ParityRow, ...]:
    """The comparisons, made or refused; the differing cells first. A cell whose control was not run is in matrix.json alone."""
    rows = [
        _parity_row(item) for item in values.items(document.get("parity")) if item.get("steps") is not None
    ]
    return tuple(sorted(rows, key=lambda row: row.judgement != "differs"))


def _parity_row(item: Mapping[str, Any]) -> ParityRow:
    worst = next(iter(values.items(item.get("worst"))), {})
    return ParityRow(
        cell=values.text(item.get("cell")) or "",
        control=values.text(item.get("control")) or "",
        judgement=(values.text(item.get("judgement")) or "").replace("_", " "),
        says=values.text(item.get("says")) or values.text(item.get("why")) or "",
        steps=values.whole(item.get("steps")),
        parameters=values.whole(item.get("parameters")),
        loss_difference=values.number(values.mapping(item.get("loss")).get("difference")),
        worst=_worst(worst),
    )


def _worst(item: Mapping[str, Any]) -> str:
    """`blocks.0.mlp.fc1.weight, off by 1.5 of its size`."""
    name, difference = values.text(item.get("parameter")), values.number(item.get("difference"))
    if name is None:
        return ""
    return name if difference is None else f"{name} ({difference:.2g})"


def _ids(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()

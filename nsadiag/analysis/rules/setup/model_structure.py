"""Differences between the models that ranks hand to DDP or FSDP; for FSDP2 unit by unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.documents.training import Tensor

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A model that differs between the ranks of its group."""

    wrapper: str
    odd: tuple[int, ...]  # ranks whose model differs from the others'
    others: tuple[int, ...]
    what: str  # "parameters" or "buffers"
    says: str  # what differs, in words
    names: tuple[str, ...]  # of what differs
    place: str  # where the outliers wrap it
    file: str  # the document that shows it
    order_only: bool  # the same tensors in another order: nothing fails, but the wrong ones are averaged


def differences(cell: CellEvidence) -> list[Difference]:
    """The first difference of each kind, among ranks whose models were recorded."""
    return [*_of_wraps(cell), *_of_units(cell)]


def _of_wraps(cell: CellEvidence) -> Iterator[Difference]:
    most = max((len(r.wraps) for r in cell.ranks), default=0)
    for index in range(most):
        rows = {r.rank: r.wraps[index] for r in cell.ranks if len(r.wraps) > index}
        if len({(row.wrapper, row.ranks) for row in rows.values()}) != 1:
            continue
        parameters = {rank: row.parameters for rank, row in rows.items()}
        buffers = {rank: row.buffers for rank, row in rows.items()}
        for what, models in (("parameters", parameters), ("buffers", buffers)):
            if found := _differ(models):
                odd, others, says, names, order_only = found
                yield Difference(
                    wrapper=rows[odd[0]].wrapper,
                    odd=odd,
                    others=others,
                    what=what,
                    says=says,
                    names=names,
                    place=rows[odd[0]].place,
                    file="wraps.json",
                    order_only=order_only,
                )
                break


def _of_units(cell: CellEvidence) -> Iterator[Difference]:
    """FSDP2's units, which are known from the first forward on."""
    models: dict[int, Tensors] = {}
    for rank in cell.ranks:
        units = [u for u in rank.units if u.kind == "FSDP2" and len(u.ranks) == cell.world_size]
        if units:
            models[rank.rank] = tuple(Tensor(p.name, p.shape, p.dtype) for u in units for p in u.parameters)
    found = _differ(models) if len(models) > 1 else None
    if found:
        odd, others, says, names, order_only = found
        yield Difference(
            wrapper="fully_shard", odd=odd, others=others, what="parameters", says=says, names=names,
            place="", file="units.json", order_only=order_only,
        )  # fmt: skip


def _differ(
    models: dict[int, Tensors],
) -> tuple[tuple[int, ...], tuple[int, ...], str, tuple[str, ...], bool] | None:
    if len(models) < 2:
        return None
    counts = Counter(models.values())
    if len(counts) == 1:
        return None
    # Without a majority, the first rank counts as right: DDP compares the others with it.
    (common, most), *rest = counts.most_common()
    if rest and rest[0][1] == most:
        common = models[min(models)]
    odd = tuple(sorted(r for r, s in models.items() if s != common))
    others = tuple(sorted(r for r, s in models.items() if s == common))
    says, names = _in_words(odd[0], models[odd[0]], others[0], common)
    return odd, others, says, names, sorted(models[odd[0]]) == sorted(common)


def _in_words(odd: int, mine: Tensors, other: int, theirs: Tensors) -> tuple[str, tuple[str, ...]]:
    """The tensors that only one of two ranks has, or that differ in shape or type."""
    by_name, others = {n: (s, d) for n, s, d in mine}, {n: (s, d) for n, s, d in theirs}
    for name, (shape, dtype) in by_name.items():
        if name in others and others[name] != (shape, dtype):
            told, told_other = _told(shape, dtype, others[name]), _told(*others[name], (shape, dtype))
            return f"{name} is {told} on rank {odd} and {told_other} on rank {other}", (name,)
    extra = [n for n in by_name if n not in others]
    lacking = [n for n in others if n not in by_name]
    if extra or lacking:
        parts = [f"has {len(mine)} where rank {other} has {len(theirs)}"] if len(mine) != len(theirs) else []
        parts += [f"only it has {_some(extra)}"] if extra else []
        parts += [f"it lacks {_some(lacking)}"] if lacking else []
        return f"rank {odd} " + "; ".join(parts), tuple(extra or lacking)
    moved = next(a[0] for a, b in zip(mine, theirs, strict=False) if a != b)
    return f"rank {odd} has the same ones in another order, from {moved} on", (moved,)


def _told(shape: tuple[int, ...], dtype: str, other: tuple[tuple[int, ...], str]) -> str:
    return str(list(shape)) + (f" {dtype.removeprefix('torch.')}" if dtype != other[1] else "")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

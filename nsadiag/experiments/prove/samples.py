"""The data that all ranks together are given beside that of one process: by content, each sample as often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsadiag.experiments.prove.record import Rank, Run

Rows = Counter[bytes]
Tensor = npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class Read:
    """A step's data: `why` it is not the same, or by which unit it is."""

    why: str = ""
    unit: str = ""  # samples, pieces of them
    copies: bool = False  # every rank was given all of it
    ours: int = 0  # samples that the ranks were given together
    theirs: int = 0


def read(ranks: Run, alone: Run, step: int) -> Read:
    """Outputs of another module are no data: a later stage of a pipeline is given nothing else."""
    one = _arguments(alone.ranks[0], step)
    every = {rank.number: _arguments(rank, step) for rank in ranks.ranks}
    if not one or not any(every.values()):
        return Read(why="no module was called with gradients")
    wanted = {number: _rows(tensors) for number, tensors in one.items()}
    given = {r: {n: _rows(t) for n, t in arguments.items()} for r, arguments in every.items() if arguments}
    together = {n: sum((rows[n] for rows in given.values() if n in rows), Counter()) for n in wanted}
    ours, theirs = together[0].total() if 0 in together else 0, wanted[min(wanted)].total()
    if all(_multiple(together[n], wanted[n]) for n in wanted):
        copies = len(given) > 1 and all(rows.get(0) == wanted.get(0) for rows in given.values())
        return Read(unit="samples", copies=copies, ours=ours, theirs=theirs)
    if _are_pieces([every[rank] for rank in given], one):
        return Read(unit="pieces of samples", ours=ours, theirs=theirs)
    return Read(why=_why(together, wanted, len(ranks.ranks)), ours=ours, theirs=theirs)


def _arguments(rank: Rank, step: int) -> dict[int, list[Tensor]]:
    """The inputs of the outermost modules, by argument."""
    found: dict[int, list[Tensor]] = {}
    for row in rank.rows("given", step):
        if row.graded:
            continue
        found.setdefault(row.argument, []).append(rank.tensor(row))
    return found


def _rows(tensors: list[Tensor]) -> Rows:
    return Counter(
        piece.tobytes() for tensor in tensors for piece in (tensor if tensor.ndim else tensor[None])
    )


def _multiple(ours: Rows, theirs: Rows) -> bool:
    """Whether each is there as often as the others, once or in as many copies."""
    return ours.keys() == theirs.keys() and len({ours[each] / theirs[each] for each in theirs}) == 1


def _why(ours: dict[int, Rows], theirs: dict[int, Rows], ranks: int) -> str:
    first = min(theirs)
    a, b = ours[first], theirs[first]
    both = (a & b).total()
    hint = (
        "; an option that sets a rank's batch: --batch-option NAME" if a.total() == ranks * b.total() else ""
    )
    return (
        f"the {ranks} ranks together are given {a.total()} samples in that step and one process {b.total()}, "
        f"{both or 'none'} of them the same{hint}"
    )


# -- sequences that are cut -----------------------------------------------------------------------


def _are_pieces(every: list[dict[int, list[Tensor]]], one: dict[int, list[Tensor]]) -> bool:
    """Whether the first argument is the one process's, cut along its second dimension, and nothing is left out."""
    first = min(one)
    whole = [tokens for tensor in one[first] if tensor.ndim > 1 for tokens in _tokens(tensor)]
    parts = [
        t for given in every for tensor in given.get(first, ()) if tensor.ndim > 1 for t in _tokens(tensor)
    ]
    if not whole or not parts or max(map(len, parts)) >= max(map(len, whole)):
        return False
    counted, expected = Counter[bytes](), Counter[bytes]()
    for tokens in whole:
        expected.update(tokens)
    for tokens in parts:
        counted.update(tokens)
    found = {tuple(tokens): i for i, tokens in enumerate(whole)}
    return _multiple(counted, expected) and all(
        any(_is_part(p, w) for w in found) for p in set(map(tuple, parts))
    )


def _tokens(tensor: Tensor) -> list[list[bytes]]:
    return [[np.ascontiguousarray(token).tobytes() for token in row] for row in tensor]


def _is_part(part: tuple[bytes, ...], whole: tuple[bytes, ...]) -> bool:
    """A run of it, two runs (a zigzag), or every n-th."""
    half = len(part) // 2
    return (
        _is_run(part, whole)
        or (half > 0 and _is_run(part[:half], whole) and _is_run(part[half:], whole))
        or any(whole[start :: len(whole) // len(part)][: len(part)] == part for start in range(len(whole) // len(part)))
    )  # fmt: skip


def _is_run(part: tuple[bytes, ...], whole: tuple[bytes, ...]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))

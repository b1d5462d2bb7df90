"""Who does what is worked out on each rank by `hash()` of a text, which Python salts anew in every process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.flow.bindings import Scope, last_name
from nsadiag.analysis.flow.guards import Program
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.sources import tree_of
from nsadiag.analysis.waiting import ran_together
from nsadiag.evidence.records import Evidence, Finding, Place, Rejected, Where

# What gives a text, whatever it is given; numbers have one hash everywhere.
GIVES_TEXT = re.compile(
    r"^(str|format|join|lower|upper|strip|[lr]strip|replace|basename|dirname|splitext|abspath|hexdigest|read_text|decode)$"
)
IS_TEXT = re.compile(r"^(\w+_)?(name|stem|path|filename|url|uri|text|word|title)$")


def salted(cell: CellEvidence) -> Iterator[Finding]:
    """Only of a job that completes: ranks that wait for one another because of it are told by what they wait in."""
    if not ran_together(cell):
        return
    hashes = {r.rank: r.meta.get("text_hash") for r in cell.ranks}
    if None in hashes.values() or len(set(hashes.values())) < 2:
        return  # all were forked from one process, or were given one PYTHONHASHSEED
    found = _shared_out(cell)
    if found is None:
        return
    yield Finding(
        detector="silently_wrong",
        cls="silently_wrong",
        outcome="wrong",
        confidence=0.7,
        summary=f"Each rank picks its share by hash() of a text at {places.short(found)}, and that is another number in each process: some of it falls to several ranks, and some to none.",
        guilty_ranks=tuple(sorted(hashes)),
        where=Where(phase="input").at(found),
        evidence=(
            Evidence(
                claim="hash() of one and the same text differs between the ranks: Python salts it in each process, as PYTHONHASHSEED was not set",
                source=f"{cell.ranks[0].source}/meta.json#text_hash",
            ),
        ),
        rejected=(
            Rejected(cls="healthy", because="it runs to its end, but not with the data that it was meant to"),
        ),
        fix="Take a hash that is the same in all processes (zlib.crc32(name.encode()), hashlib), or the position in a sorted list; PYTHONHASHSEED=0 for all ranks helps for now.",
    )


def _shared_out(cell: CellEvidence) -> Place | None:
    """The line of a hash of a text that is compared with the rank, as a remainder mostly."""
    if not any("hash(" in text for text in cell.sources.values()):
        return None
    program = Program({file: tree for file in cell.sources if (tree := tree_of(cell, file))})
    for scope, call in program.origins.calls.get("hash", ()):
        plain = isinstance(call.func, ast.Name) and len(call.args) == 1
        if plain and _is_text(call.args[0]) and _is_compared(call, scope, program):
            return places.place(scope[0], call.lineno, scope[1].rpartition(".")[2] or None)
    return None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_text(node.value)
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Call):
        return bool(GIVES_TEXT.search(last_name(node.func)))
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr) or bool(IS_TEXT.search(last_name(node)))


def _is_compared(value: ast.expr, scope: Scope, program: Program, *, depth: int = 3) -> bool:
    """Whether what is made of it, directly, by a name, or as what a function of the user's returns, is compared with the rank."""
    origins, parents = program.origins, program.parents
    node: ast.AST = value
    above = parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Compare):
            sides = [above.left, *above.comparators]
            return any(side is not node and origins.of(side, scope) == "rank" for side in sides)
        node, above = above, parents.get(above)
    if not depth:
        return False
    if isinstance(above, ast.Return):
        name = scope[1].rpartition(".")[2]
        uses: list[tuple[Scope, ast.expr]] = list(origins.calls_of(name))
    elif isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        uses = [(scope, name) for name in _loads(above.targets[0].id, above, parents)]
    else:
        return False
    return any(_is_compared(use, where, program, depth=depth - 1) for where, use in uses)


def _loads(name: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[ast.Name]:
    """Where the name is read in the function around."""
    while node in parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node = parents[node]
    return [
        n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]

"""What the user's code tells a framework on one rank alone, and an object of the framework's that watches it there, with a collective."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from nsadiag.analysis.explain.candidates.collections import on_rank
from nsadiag.analysis.explain.context import Divergence, Situation
from nsadiag.analysis.explain.result import Case, line_of, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.thread_state import main_thread
from nsadiag.evidence.records import Evidence, Place
from nsadiag.evidence.user_code import is_user
from nsadiag.source.control import Guard, Program
from nsadiag.source.model import Scope, last_name

# How frameworks are told a metric: LightningModule.log and log_dict, Fabric's, Accelerator's and Trainer's log.
TELLS = ("log", "log_dict")
# Lines of text go there, and numbers to be drawn.
NOT_TOLD = re.compile(r"log(ger|ging)?s?$|writer$|^(wandb|run)$", re.IGNORECASE)
ON_RANK_0 = "rank_zero_only"  # what Lightning's `log` is given for that


@dataclass(frozen=True, kw_only=True)
class _Telling:
    at: Place
    sure: bool  # whether the name is just that, and not one that may be
    guard: Guard | None
    rank: int | None  # on which alone; -1 for the last


def by_value_told_alone(s: Situation) -> Divergence | None:
    """All are in one line of the user's; what some wait in there goes on only where a name is known, and one rank alone is told it."""
    members = s.members()
    if not s.still or not all(s.waits_for_peers(rank) for rank in members):
        return None
    kinds = {rank: _kinds_on_stack(s, rank) for rank in members}
    for kind in sorted(set().union(*kinds.values())):
        inside = tuple(r for r in members if kind in kinds[r])
        if len(inside) != 1:
            continue
        for watched, made_at in _watched(s.program, kind):
            tellings = list(_tellings(s.program, watched))
            sure = next((t for t in tellings if t.sure), None)
            named = {s.cell.world_size - 1 if t.rank == -1 else t.rank for t in tellings}
            if sure is not None and named == {*inside}:
                return _of_telling(s, inside, kind, watched, made_at, sure)
    return None


def _kinds_on_stack(s: Situation, rank: int) -> set[str]:
    """Classes of libraries whose methods the main thread is in."""
    capture = s.cell.rank(rank).last_capture
    frames = main_thread(capture).get("frames", []) if capture else []
    names = (str(f["name"]).split(".")[:-1] for f in frames if not is_user(f["filename"]))
    return {part for parts in names for part in parts if part != "<locals>"}


def _watched(program: Program, kind: str) -> list[tuple[str, Place]]:
    """Names that the user gives where an object of that class, or of one derived from it, is made."""
    kinds = {kind}
    for _ in range(len(program.origins.classes)):
        kinds |= {n for n, (_, c) in program.origins.classes.items() if {last_name(b) for b in c.bases} & kinds}  # fmt: skip
    return [
        (text, locations.place(scope[0], call.lineno, scope[1].rpartition(".")[2] or None))
        for each in sorted(kinds)
        for scope, call in program.origins.calls.get(each, ())
        for given in (*call.args, *(k.value for k in call.keywords))
        if (text := _text(program, given, scope)) is not None
    ]


def _text(program: Program, node: ast.expr | None, scope: Scope) -> str | None:
    """A string, or a name that only ever stands for it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    keys = list(program.origins.keys_of(node, scope)) if isinstance(node, ast.Name | ast.Attribute) else []
    values = [b.value for key in keys for b in program.origins.bindings.get(key, ())]
    texts = {v.value if isinstance(v, ast.Constant) else None for v in values}
    found = texts.pop() if len(texts) == 1 else None
    return found if isinstance(found, str) else None


def _tellings(program: Program, watched: str) -> list[_Telling]:
    """All calls by which a framework is told that name, or may be."""
    found = []
    for scope, call in (c for name in TELLS for c in program.origins.calls_of(name)):
        if not isinstance(call.func, ast.Attribute) or NOT_TOLD.search(last_name(call.func.value)):
            continue
        fits = [fit for node in _names_given(call) if (fit := _fits(program, node, scope, watched))]
        if fits:
            guard = on_rank(program, scope, call.lineno)
            zero = any(k.arg == ON_RANK_0 and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords)  # fmt: skip
            found.append(
                _Telling(
                    at=locations.place(scope[0], call.lineno, scope[1].rpartition(".")[2] or None),
                    sure="sure" in fits,
                    guard=guard,
                    rank=0 if zero else guard.rank if guard else None,
                )
            )
    return found


def _names_given(call: ast.Call) -> list[ast.expr | None]:
    """What stands for names of metrics in the call; None of a mapping that takes in another one."""
    first = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("name", "dictionary"))][:1]
    return [key for node in first for key in (node.keys if isinstance(node, ast.Dict) else [node])]


def _fits(program: Program, node: ast.expr | None, scope: Scope, watched: str) -> str:
    """Whether it is the name: "sure", "maybe", or "" where it is not."""
    text = _text(program, node, scope)
    if text is not None:
        return "sure" if text == watched else ""
    if isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(v.value)) if isinstance(v, ast.Constant) else ".*" for v in node.values)
        return "maybe" if re.fullmatch("".join(parts), watched) else ""
    return "maybe"


def _of_telling(
    s: Situation, inside: tuple[int, ...], kind: str, watched: str, made_at: Place, telling: _Telling
) -> Divergence:
    blocked = tuple(r for r in s.members() if r not in inside)
    guard = telling.guard
    behind = (
        f"behind `{shown(guard)}` at {locations.short(line_of(guard))}" if guard else f"with {ON_RANK_0}=True"
    )
    return made(
        s,
        Case(
            cls="rank_conditional_collective", guilty=inside, blocked=blocked, guard=guard, where=telling.at, confidence=0.85,
            because=f"alone is told `{watched}` ({locations.short(telling.at)}, {behind}), and so comes alone to the collective in {kind}, which watches it ({locations.short(made_at)})",
            evidence=(
                Evidence(claim=f"rank {inside[0]} is in {kind}, and no other rank is", source=s.source_of(inside[0])),
                Evidence(claim=f"`{watched}` is told nowhere but on that rank: {telling.at.code}", source=s.cited(telling.at.file, telling.at.line)),
                Evidence(claim=f"{kind} is made to watch it: {made_at.code}", source=s.cited(made_at.file, made_at.line)),
                s.stands(inside[0]),
                s.stands(blocked[0]),
            ),
        ),
    )  # fmt: skip

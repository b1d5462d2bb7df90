"""Conduct that no patch may agree by, read from its text: an error swallowed, a sleep, an early leave, work left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Set

from nsadiag.evidence.rehearsal.repair import Shown
from nsadiag.repair.change import Change, FileChange
from nsadiag.source.model import last_name, name_of
from nsadiag.source.syntax import parse
from nsadiag.source.vocabulary import ENDS_PROCESS

# Agreements by which a rank's own yes may become a no.
NOT_ANY = re.compile(
    r"\b(?:broadcast|scatter)\w*\(|\bReduceOp\.(?!MAX\b)|\ball_reduce\((?!.*ReduceOp)|\bgather\w*\(|\ball_gather\w*\("
)
AGREES = re.compile(r"\b(?:broadcast|scatter|all_reduce|gather|all_gather)\w*\(")
# Agreements by which a rank's own no may become a yes.
NOT_ALL = re.compile(
    r"\b(?:broadcast|scatter)\w*\(|\bReduceOp\.(?!MIN\b)|\ball_reduce\((?!.*ReduceOp)|gather\w*\("
)
# Draws of the generators of Python, NumPy and torch that decide something: whole tensors of them are data.
DRAWS = frozenset(
    {"random", "randrange", "uniform", "getrandbits", "random_sample", "bernoulli", "betavariate", "gauss"}
)
TESTS = ast.If | ast.IfExp | ast.While
LEAVES = (ast.Break, ast.Return, ast.Continue, ast.Raise)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def conduct(change: Change) -> Shown:
    """The row of the proof: the text adds none of these."""
    for file in change.files:
        if not file.path.endswith(".py"):
            continue
        try:
            before, after = parse(file.before), parse(file.after)
        except (SyntaxError, ValueError, RecursionError):
            return Shown(criterion="conduct", met=False, because=f"{file.path} is no Python with the patch")
        for what, found in WAYS:
            if new := Counter(found(after)) - Counter(found(before)):
                return Shown(criterion="conduct", met=False, because=f"{file.path} {what}: {min(new)}")
        if line := _decides_for_others(file, before, after):
            because = f"{file.path}:{line}: a rank is kept out of a side that it would have taken"
            return Shown(criterion="conduct", met=False, because=because)
        if early := _leaves_early(file, before, after):
            return Shown(criterion="conduct", met=False, because=f"{file.path} leaves early: {early}")
    return Shown(criterion="conduct", met=True, because="no error swallowed, no sleep, no early leave")


def _swallows(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not any(isinstance(n, ast.Raise) for n in ast.walk(node)):
            yield f"except {ast.unparse(node.type) if node.type else ''}".rstrip()
        elif isinstance(node, ast.Call) and name_of(node) == "suppress":
            yield ast.unparse(node)


def _sleeps(tree: ast.Module) -> Iterator[str]:
    """Also by an event of its own, which nobody sets, and by nothing to select from."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        waits = node.func.value if isinstance(node.func, ast.Attribute) else None
        own_event = (
            name_of(node) == "wait"
            and isinstance(waits, ast.Call)
            and name_of(waits) in ("Event", "Condition")
        )
        nothing = (
            name_of(node) == "select"
            and len(node.args) == 4
            and not any(getattr(a, "elts", [1]) for a in node.args[:3])
        )
        if name_of(node) == "sleep" or own_event or nothing:
            yield ast.unparse(node)


def _looks_for_us(tree: ast.Module) -> Iterator[str]:
    """Names of ours: a job that behaves otherwise in a trial proves nothing by it."""
    for node in ast.walk(tree):
        said = getattr(node, "value", None) if isinstance(node, ast.Constant) else getattr(node, "name", None)
        if isinstance(said, str) and "nsadiag" in said.lower():
            yield said


def _ends(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in ENDS_PROCESS | {
            "destroy_process_group",
            "abort",
        }:
            yield ast.unparse(node)


WAYS: tuple[tuple[str, Callable[[ast.Module], Iterator[str]]], ...] = (
    ("swallows an error", _swallows), ("sleeps", _sleeps), ("asks who watches", _looks_for_us), ("ends the process or its group", _ends),
)  # fmt: skip


def _decides_for_others(file: FileChange, before: ast.Module, after: ast.Module) -> int:
    """The line of a branch whose new condition keeps a rank out of a side that it would have taken; 0 where none does.

    What it would have done there shows in no rehearsal of the failed job. Any rank's yes keeps no rank out of a branch that has
    no other side. Where a branch leaves, whoever would have stayed is kept out of all that follows: that is said, and counted by
    steps, where whole rounds of training follow; elsewhere all ranks have to want it.
    """
    rows = file.after.splitlines()
    added = "\n".join(rows[line - 1] for line in sorted(file.added))
    asks, keeps_out = bool(AGREES.search(added)), bool(NOT_ANY.search(added))
    if not asks:
        return 0
    all_want = "ReduceOp.MIN" in added and not NOT_ALL.search(added)
    old = {ast.unparse(node.test) for node in ast.walk(before) if isinstance(node, TESTS)}
    known = {function for function, _ in _by_function(before)}
    new = [n for function, n in _by_function(after) if isinstance(n, FUNCTIONS) and function not in known]
    trains, draws = _reaching(after, {"backward"}), _reaching(after, DRAWS)
    shares = {n.name for n in new if "broadcast" in ast.unparse(n)}
    groups = {
        ast.unparse(n.targets[0]) for n in ast.walk(before) if isinstance(n, ast.Assign) and _creates_group(n)
    }
    for node in ast.walk(after):
        if not isinstance(node, TESTS):
            continue
        is_new = node.test.lineno in file.added and ast.unparse(node.test) not in old
        if not is_new and not _asks_flag(node, after, file, groups):
            continue
        if any(f.lineno <= node.lineno <= (f.end_lineno or 0) for f in new):
            continue
        drawn = _drawn(node.test, draws, {n.name for n in new})
        if drawn:
            # One rank's draw is as good as another's; several together are drawn more often, or less.
            refused = not all(by in shares for by in drawn)
        elif isinstance(node, ast.While):
            refused = not (not keeps_out or _is_round(node, trains))
        elif isinstance(node, ast.If) and not node.orelse and any(isinstance(s, LEAVES) for s in node.body):
            refused = not all_want and not any(_is_round(part, trains) for part in _left(node, after))
        else:
            refused = keeps_out or isinstance(node, ast.IfExp) or bool(getattr(node, "orelse", []))
        if refused:
            return node.test.lineno
    return 0


def _creates_group(node: ast.Assign) -> bool:
    """Whether its value is a process group: who creates it decides nothing."""
    return isinstance(node.value, ast.Call) and name_of(node.value) == "new_group"


def _asks_flag(
    node: ast.If | ast.IfExp | ast.While, tree: ast.Module, file: FileChange, groups: Set[str]
) -> bool:
    """Whether it asks a name that a new line assigns; of a process group it asks as it did whether the rank has one."""
    asked = {ast.unparse(n) for n in ast.walk(node.test) if isinstance(n, ast.Name | ast.Attribute)}
    return any(
        isinstance(n, ast.Assign) and n.lineno in file.added and ast.unparse(n.targets[0]) in asked - groups
        for n in ast.walk(tree)
    )


def _drawn(test: ast.expr, draws: set[str], new: set[str]) -> list[str]:
    """For each call in the test that draws at random, the new function that it is given to alone; empty for none."""
    found: list[str] = []
    pending: list[tuple[ast.AST, str]] = [(test, "")]
    while pending:
        node, by = pending.pop()
        if isinstance(node, ast.Call) and name_of(node) in draws:
            found.append(by)
            continue
        given = name_of(node) if isinstance(node, ast.Call) and name_of(node) in new and node.args else ""
        alone = given and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Call)
        pending += [(child, given if alone else "") for child in ast.iter_child_nodes(node)]
    return found


def _left(node: ast.If, tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that are not run where the branch is taken: the loop around it, or the rest of its function."""
    parents = {child: n for n in ast.walk(tree) for child in ast.iter_child_nodes(n)}
    of_loop = any(isinstance(s, ast.Break | ast.Continue) for s in node.body)
    around: ast.AST = node
    while (above := parents.get(around)) is not None:
        if isinstance(above, ast.For | ast.While) and of_loop:
            yield above
            return
        if isinstance(above, FUNCTIONS):
            break
        if not of_loop and isinstance(above, ast.For | ast.While):
            yield above
        around = above
    holder = above if above is not None else tree
    yield from (s for s in getattr(holder, "body", []) if s.lineno > node.lineno)


def _reaching(tree: ast.Module, called: Set[str]) -> set[str]:
    """These functions, and those of the module that call them, by themselves or by what they call."""
    functions = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)]
    found = set(called)
    while more := {f.name for f in functions if f.name not in found and _is_round(f, found)}:
        found |= more
    return found


def _is_round(node: ast.AST, training: set[str]) -> bool:
    return any(isinstance(n, ast.Call) and name_of(n) in training for n in ast.walk(node))


def _leaves_early(file: FileChange, before: ast.Module, after: ast.Module) -> str:
    """A new `return`, `break` or `continue` in a function that was there; what a new function does, its callers see."""
    old = {function for function, _ in _by_function(before)}
    new = Counter(_leaves(after, old)) - Counter(_leaves(before, old))
    return min(new, default="")


def _by_function(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """All nodes, each with the function that it is in, by its name with those of the classes and functions around it."""
    pending: list[tuple[str, str, ast.AST]] = [("", "the module", tree)]
    while pending:
        around, function, node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            around = f"{around}{node.name}."
            function = function if isinstance(node, ast.ClassDef) else around[:-1]
        yield function, node
        pending += [(around, function, child) for child in ast.iter_child_nodes(node)]


def _leaves(tree: ast.Module, functions: Set[str]) -> Iterator[str]:
    """In these functions."""
    for function, node in _by_function(tree):
        if function in functions and isinstance(node, ast.Return | ast.Break | ast.Continue):
            yield f"{type(node).__name__.lower()} in {function}"

"""A script as a tree whose parts have numbers, so that edits of it can be combined in any order, and printed again."""

from __future__ import annotations

import ast
import builtins
import copy
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsadiag.experiments.rewriting.printing import DEFINES, printed

BUILT_IN = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__class__"}
BODIES = ("body", "orelse", "finalbody")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)  # one of each in any tree
Edit = tuple[Any, ...]  # what is done to a node; see `_Apply`
Edits = Mapping[int, "frozenset[Edit]"]  # by the node's number


def _copied(node: Any) -> Any:
    """The tree anew: one for each of hundreds of cuts, in half the time that deepcopy takes."""
    if isinstance(node, list):
        return [_copied(each) for each in node]
    if not isinstance(node, ast.AST) or isinstance(node, SHARED):
        return node  # nobody changes it
    made = type(node).__new__(type(node))
    made.__dict__.update((name, _copied(value)) for name, value in vars(node).items())
    return made


@dataclass(kw_only=True)
class Program:
    """The tree. Nodes carry `number`; a statement that has to stay as it is written carries `verbatim`."""

    tree: ast.Module
    kept: set[int] = field(default_factory=set)  # numbers of statements that must stay

    def copy(self) -> Program:
        return Program(tree=_copied(self.tree), kept=set(self.kept))

    def statements(self) -> Iterator[ast.stmt]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt))

    def node(self, number: int) -> ast.AST | None:
        return next((n for n in ast.walk(self.tree) if getattr(n, "number", None) == number), None)

    def text(self) -> str:
        return printed(self.tree)

    def applied(self, edits: Edits) -> Program:
        """The same with the edits done, and with what is of no use any more left out."""
        other = self.copy()
        other.tree = _Apply(edits).visit(other.tree)
        tidy(other)
        return other


def parse(source: str, *, wanted_line: int | None = None, first_number: int = 0) -> Program:
    """Numbers every node, and keeps the statement of `wanted_line` as it is written. Raises SyntaxError."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree), first_number):
        node.number = number  # type: ignore[attr-defined]
        if isinstance(node, ast.stmt) and _is_void(node):
            node.idle = True  # type: ignore[attr-defined] # a loop that spins, written so on purpose
    program = Program(tree=tree)
    if wanted_line is not None:
        _keep(program, source, wanted_line)
    strip(tree)
    return program


def _keep(program: Program, source: str, line: int) -> None:
    holding = [s for s in program.statements() if s.lineno <= line <= (s.end_lineno or s.lineno)]
    if not holding:
        return
    innermost = min(holding, key=lambda s: (s.end_lineno or s.lineno) - s.lineno)
    text = source.splitlines()
    body = getattr(innermost, "body", None)
    if body and body[0].lineno > line:  # a compound statement's header: what it holds may change
        lines = text[innermost.lineno - 1 : body[0].lineno - 1]
        while len(lines) > line - innermost.lineno + 1 and not lines[-1].split("#")[0].rstrip().endswith(":"):
            lines.pop()
        if not lines[-1].split("#")[0].rstrip().endswith(":"):
            lines = []
    else:
        lines = text[innermost.lineno - 1 : innermost.end_lineno]
    if lines and lines[0].lstrip().startswith(("elif", "else")):
        lines = []
    if lines and ";" not in lines[0]:
        innermost.verbatim = textwrap.dedent("\n".join(lines)).rstrip()  # type: ignore[attr-defined]
    program.kept.add(innermost.number)  # type: ignore[attr-defined]


def strip(tree: ast.Module) -> None:
    """Without docstrings and annotations, which run nothing that a failure could hang on."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINES)) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
            if not node.body and not isinstance(node, ast.Module):
                node.body = [_pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not hasattr(node, "verbatim"):
            node.returns = None
            for argument in (
                *node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg
            ):  # fmt: skip
                if argument is not None:
                    argument.annotation = None
    _Unannotated().visit(tree)


class _Unannotated(ast.NodeTransformer):
    """`x: int = 1` becomes `x = 1`, but not in a class, where a dataclass may read it."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [s if isinstance(s, ast.AnnAssign) else self.visit(s) for s in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or hasattr(node, "verbatim"):
            return node
        plain = ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        plain.number = node.number  # type: ignore[attr-defined]
        return plain


def _pass() -> ast.Pass:
    node = ast.Pass()
    node.number = -1  # type: ignore[attr-defined]
    return node


# -- edits ----------------------------------------------------------------------------------------


class _Apply(ast.NodeTransformer):
    """("delete",) · ("unwrap", field) · ("be", number of a child) · ("replace", nodes) ·
    ("argument", position or keyword) · ("parameter", name). The first of these that a node has is done."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits

    def visit(self, node: ast.AST) -> Any:
        asked = self.edits.get(getattr(node, "number", -1))
        if not asked:
            return self.generic_visit(node)
        by_kind = {edit[0]: edit for edit in sorted(asked, key=repr)}
        if "delete" in by_kind:
            return None
        if "unwrap" in by_kind:
            return self._all(getattr(node, by_kind["unwrap"][1]))
        if "be" in by_kind:
            number = by_kind["be"][1]
            child = next(
                (n for n in ast.walk(node) if n is not node and getattr(n, "number", -1) == number), None
            )
            return self.generic_visit(node) if child is None else self.visit(child)
        if "replace" in by_kind:
            fresh = copy.deepcopy(by_kind["replace"][1])
            return list(fresh) if isinstance(fresh, tuple) else fresh
        # Later positions first: the earlier ones stay what they are.
        for kind, what in sorted(asked, key=lambda e: (isinstance(e[1], int), e[1]), reverse=True):
            (_drop_argument if kind == "argument" else _drop_parameter)(node, what)
        return self.generic_visit(node)

    def _all(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for node in nodes:
            done = self.visit(node)
            found.extend(done if isinstance(done, list) else [done] if done is not None else [])
        return found


def _drop_argument(node: ast.AST, position: int | str) -> None:
    if isinstance(node, ast.Call):
        if isinstance(position, str):
            node.keywords = [k for k in node.keywords if k.arg != position]
        elif position < len(node.args):
            del node.args[position]


def _drop_parameter(node: ast.AST, name: str) -> None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    given = node.args
    first_default = len(given.args) - len(given.defaults)
    for place, argument in enumerate(given.args):
        if argument.arg == name:
            del given.args[place]
            if place >= first_default:
                del given.defaults[place - first_default]
            return
    for place, argument in enumerate(given.kwonlyargs):
        if argument.arg == name:
            del given.kwonlyargs[place], given.kw_defaults[place]
            return


# -- what is of no use ----------------------------------------------------------------------------


def tidy(program: Program) -> None:
    """Drops what was emptied, and imports, definitions and plain values that nothing names any more."""
    while True:
        before = sum(1 for _ in program.statements())
        _fill(program.tree)
        used = {
            n.id
            for n in ast.walk(program.tree)
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)
        }
        used |= {n.attr for n in ast.walk(program.tree) if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Store)}  # fmt: skip
        used |= {
            name
            for n in ast.walk(program.tree)
            if isinstance(n, ast.Global | ast.Nonlocal)
            for name in n.names
        }
        _Unused(used, program.kept).visit(program.tree)
        _fill(program.tree)
        if sum(1 for _ in program.statements()) == before:
            return


def _fill(tree: ast.AST) -> None:
    """A body must hold something; a statement with nothing left to do goes."""
    for node in ast.walk(tree):
        for name in BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, _kept_body([s for s in body if not _is_void(s)], node, name))


def _is_void(node: ast.AST) -> bool:
    """Bottom up, so that what holds only such statements is one."""
    if isinstance(node, ast.Pass):
        return True
    if hasattr(node, "verbatim") or hasattr(node, "idle"):
        return False
    # A loop over a loader, or a lock that is taken, does something with nothing in it.
    if isinstance(node, ast.If | ast.While | ast.Try):
        parts = [s for name in BODIES for s in getattr(node, name, [])]
        return all(_is_void(s) for s in parts)
    return False


def _kept_body(body: list[Any], node: ast.AST, name: str) -> list[Any]:
    needs = name == "body" and not isinstance(node, ast.Module)
    return [_pass()] if needs and not body else body


class _Unused(ast.NodeTransformer):
    def __init__(self, used: set[str], kept: set[int]) -> None:
        self.used, self.kept = used, kept

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [a for a in node.names if (a.asname or a.name.split(".")[0]) in self.used]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        node.names = [a for a in node.names if (a.asname or a.name) in self.used or a.name == "*" or node.module == "__future__"]  # fmt: skip
        return node if node.names else None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return self._defined(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        return self._defined(node)

    def _defined(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST | None:
        # Methods are called by others than this file: forward, __getitem__.
        top = getattr(node, "top", True)
        if top and node.name not in self.used and not node.decorator_list and not self._holds_kept(node):
            return None
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                inner.top = False  # type: ignore[attr-defined]
        return self.generic_visit(node)

    def _holds_kept(self, node: ast.AST) -> bool:
        return any(getattr(n, "number", None) in self.kept for n in ast.walk(node))

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        plain = len(names) == len(node.targets) and _is_plain(node.value)
        if plain and not set(names) & self.used and node.number not in self.kept:  # type: ignore[attr-defined]
            return None if getattr(node, "top", True) else node
        return node


def _is_plain(node: ast.AST) -> bool:
    """Whether to evaluate it does nothing."""
    calm = (
        ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Lambda,
        ast.expr_context, ast.operator, ast.unaryop, ast.JoinedStr, ast.FormattedValue, ast.arguments, ast.arg,
    )  # fmt: skip
    if isinstance(node, ast.Lambda):
        return True
    return isinstance(node, calm) and all(_is_plain(child) for child in ast.iter_child_nodes(node))


def undefined(tree: ast.AST) -> set[str]:
    """Names that are read and bound nowhere in the file: such a candidate would end in a NameError."""
    bound: set[str] = set(BUILT_IN)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, DEFINES):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {a.asname or a.name.split(".")[0] for a in node.names}
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, ast.MatchAs | ast.MatchStar) and node.name
        ):
            bound.add(node.name)
    return {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)
    } - bound

"""Code that must not be changed partially: it removes files or ends processes, or decides what those calls act on.

A trial runs what is left of the user's script. `rmtree(folder / name)` without `/ name`, or behind an `if` that was
taken away, would be run as well: so such code stays as it is written, with all that leads to it, or goes as a whole.
"""

from __future__ import annotations

import ast

from nsadiag.experiments.rewriting.edits import Links, number
from nsadiag.experiments.rewriting.program import Program

ANYONE = {
    "rmtree", "unlink", "rmdir", "removedirs", "kill", "killpg", "system", "Popen", "check_call", "check_output",
    "execv", "execvp", "execve", "truncate", "terminate",
}  # fmt: skip
OF_MODULE = {
    "os": {"remove", "rename", "replace", "link", "symlink", "chmod", "chown"},
    "shutil": {"move", "copytree", "copy", "copyfile"},
    "subprocess": {"run", "call", "getoutput"},
}


def zones(program: Program) -> dict[int, dict[int, str]]:
    """By dangerous statement: the statements that decide on it, as they are written."""
    links = Links.of(program)
    found = {}
    for statement in links.statements.values():
        if any(_is_dangerous(n) for n in _header_nodes(statement)):
            found[number(statement)] = {n: _said(links.statements[n]) for n in _zone(links, statement)}
    return found


def is_safe(program: Program, zones_before: dict[int, dict[int, str]]) -> bool:
    """Whether all that is dangerous in the candidate stands as it stood, with its surroundings."""
    now = {number(s): s for s in program.statements()}
    for dangerous, zone in zones_before.items():
        if dangerous in now and any(n not in now or _said(now[n]) != text for n, text in zone.items()):
            return False
    return True


def _zone(links: Links, statement: ast.stmt) -> set[int]:
    """The function around it, what that reads, and whoever calls it: transitively."""
    zone: set[int] = set()
    pending = {number(statement)}
    while pending:
        one = pending.pop()
        if one in zone or one not in links.statements:
            continue
        zone.add(one)
        node = links.statements[one]
        for outer in links.inside(node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                pending |= links.nested(outer)
                pending |= {
                    number(links.statement(use))
                    for key in links.bound_by[number(outer)]
                    for use in links.uses[key]
                }
            elif isinstance(outer, ast.stmt) and not isinstance(outer, ast.ClassDef):
                pending.add(number(outer))
        for key in links.used_by.get(one, ()):
            pending |= {
                b
                for b in links.binders.get(key, ())
                if not isinstance(links.statements.get(b), ast.ClassDef | ast.FunctionDef)
            }
    return zone


def _header_nodes(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of the statement itself, without nested statements."""
    found: list[ast.AST] = []
    pending = [c for c in ast.iter_child_nodes(statement) if not isinstance(c, ast.stmt | ast.ExceptHandler)]
    while pending:
        node = pending.pop()
        found.append(node)
        pending.extend(c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.stmt))
    return found


def _is_dangerous(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ANYONE:
        return not _ends_itself(node)
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and name in OF_MODULE.get(owner.id, ())


def _ends_itself(node: ast.Call) -> bool:
    """`os.kill(os.getpid(), ...)`: the pid is where it is used, and a trial's own."""
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Call) and ast.unparse(first) in ("os.getpid()", "getpid()")


def _said(statement: ast.stmt) -> str:
    """The statement without what it holds."""
    if isinstance(getattr(statement, "body", None), list):
        return " ".join(
            ast.unparse(n) for n in ast.iter_child_nodes(statement) if not isinstance(n, ast.stmt)
        )
    return ast.unparse(statement)

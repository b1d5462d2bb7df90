"""The origin of a collective's root: from the call back through names and returned values."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.model import SourceModel, name_of

KEYWORDS = frozenset({"src", "dst", "group_src", "group_dst"})
# The root may stand there without its name.
SECOND = frozenset({"broadcast", "broadcast_object_list", "reduce"})


def chosen_at(code: SourceModel, call: Place) -> Place | None:
    """The line at which what names stand for ends: a choice, a count, a setting; None where it is the call's own."""
    program = Program({call.file: file}) if (file := code.file(call.file)) else Program({})
    calls = program.call_nodes_on(call.file, call.line)
    roots = [root for each in calls if (root := _root(each))]
    if len(roots) != 1:
        return None
    node, scope = program.dataflow.origin(roots[0], program.scope_of(call.file, call.line))
    return scope.place(node.lineno) if node.lineno != roots[0].lineno else None


def _root(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in KEYWORDS]
    if named:
        return named[0]
    return call.args[1] if name_of(call) in SECOND and len(call.args) > 1 else None

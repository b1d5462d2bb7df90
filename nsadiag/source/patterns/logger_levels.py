"""Levels of loggers that differ between ranks, and the calls that ask for them."""

from __future__ import annotations

import ast

# What loggers answer by their level.
QUESTIONS = ("isEnabledFor", "getEffectiveLevel")


def level_given(call: ast.Call) -> ast.expr | None:
    """The level that a call gives to a logger; None where it gives none.

    `20 if rank == 0 else 30` gives its condition: of a level a number decides what is done.
    """
    function = call.func
    if not isinstance(function, ast.Attribute):
        return None
    receiver = ast.unparse(function.value).lower()
    # A handler's level decides what it writes, and no logger answers by it.
    by_place = (function.attr == "setLevel" and "handler" not in receiver) or (
        function.attr == "disable" and receiver == "logging"
    )
    by_name = by_place or (function.attr == "basicConfig" and receiver == "logging")
    level = next((k.value for k in call.keywords if k.arg == "level" and by_name), None)
    if by_place and call.args:
        level = call.args[0]
    return level.test if isinstance(level, ast.IfExp) else level

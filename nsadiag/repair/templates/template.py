"""A template: how it is named, an example, and the function that proposes patches at the lines of a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nsadiag.repair.text import Module

COUNTED = "nsadiag counted"  # then what was taken and what was left out


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A new text of the module. `cost`: what it leaves out, where it leaves anything out.

    `counting`: the same with a helper that goes on to count what it leaves out, for one trial; it prints that behind COUNTED.
    """

    what: str
    text: str
    line: int = 0  # at which it is made: candidates are tried in the order in which the verdict names one of their lines
    branch: int = 0  # the line of the condition that it changes, where that is another one
    cost: str = ""
    counting: str = ""
    is_guess: bool = False  # tried behind all others


@dataclass(frozen=True, kw_only=True)
class Example:
    """A module, the line at which a verdict points, and what the first proposal makes of it."""

    before: str
    line: int
    after: str


@dataclass(frozen=True, kw_only=True)
class Template:
    """`classes`: the classes of failure that it answers; empty where the code alone decides."""

    name: str
    propose: Callable[[Module], Iterator[Proposal]]
    example: Example
    classes: frozenset[str] = frozenset()

"""A matrix of experiments: YAML in, cells out; a key that is not known is refused with the nearest one."""

from __future__ import annotations

from nsadiag.spec.cell import Cell
from nsadiag.spec.files import BUILT_IN, find_spec, load_matrix
from nsadiag.spec.hypothesis import Hypothesis, Trial, words_named
from nsadiag.spec.matrix import Axis, Matrix, Setting, checked_strategy
from nsadiag.spec.selection import select

__all__ = [
    "BUILT_IN",
    "Axis",
    "Cell",
    "Hypothesis",
    "Matrix",
    "Setting",
    "Trial",
    "checked_strategy",
    "find_spec",
    "load_matrix",
    "select",
    "words_named",
]

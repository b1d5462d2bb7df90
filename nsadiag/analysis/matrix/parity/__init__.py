"""Parity: runs that should compute the same thing are compared with their control by what their first steps left."""

from nsadiag.analysis.matrix.parity.compare import Comparison, compare
from nsadiag.analysis.matrix.parity.difference import Difference
from nsadiag.analysis.matrix.parity.document import document_of, row_of

__all__ = [
    "Comparison",
    "Difference",
    "compare",
    "document_of",
    "row_of",
]

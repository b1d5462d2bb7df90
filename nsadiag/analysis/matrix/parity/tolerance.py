"""Tolerances for two runs that compute the same in another order, by the coarser precision of the two."""

from __future__ import annotations

from dataclasses import dataclass

# The relative distance of a parameter's gradients, at the first step. Measured on runs that differ in nothing but
# the order of their sums, times ten or so: docs/parity.md has the table.
GRADIENT = {"float64": 1e-9, "float32": 1e-3, "tf32": 2e-2, "float16": 3e-2, "bfloat16": 0.15}
LOSS = {"float64": 1e-12, "float32": 2e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1e-2}
# Parameters before the first step: the same numbers, at most stored in another type.
START = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}
COARSEST_FIRST = ("bfloat16", "float16", "tf32", "float32", "float64")
# A gradient much smaller than the model's usual one is a sum that cancels: its rounding errors are those of its terms.
FLOOR = 0.05
# Of what the optimizer did: settings that make less of a difference are not seen.
UPDATE = 0.25  # in one parameter, where a factor explains it: all but this share
UNEXPLAINED = 0.1
UPDATE_OF_ALL = 0.5  # in all of them together
ROUNDING = 1e-6
GROWTH = 2.0  # from one step to the next: what the optimizer made of rounding adds to it


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The tolerances of one comparison."""

    precision: str

    @property
    def loss(self) -> float:
        return LOSS[self.precision]

    @property
    def of_unknown_data(self) -> float:
        """The tolerated difference of losses where nothing else says that the data is the same."""
        return LOSS["float32"]

    def gradient(self, step: int) -> float:
        return float(GRADIENT[self.precision] * GROWTH**step)


def tolerance_of(precisions: frozenset[str]) -> Tolerance:
    """By all dtypes that either run computed in; one that is not known counts as the coarsest."""
    known = [name for name in COARSEST_FIRST if name in precisions]
    if not known or precisions - set(COARSEST_FIRST):
        return Tolerance(precision=COARSEST_FIRST[0])
    return Tolerance(precision=known[0])


def start_tolerance(first: str, second: str) -> float:
    """The tolerances of parameters in these dtypes."""
    return max(START.get(dtype, START["bfloat16"]) for dtype in (first, second))

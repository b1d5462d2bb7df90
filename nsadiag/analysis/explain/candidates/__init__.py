"""Generators of candidates, by what the sides of a divergence did differently; their order breaks ties.

Beside candidates they yield, where they can say so, the conditions that they rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nsadiag.analysis.explain.candidate import Candidate, Rejection
from nsadiag.analysis.explain.candidates.branch import branches
from nsadiag.analysis.explain.candidates.detached_loss import detached_losses
from nsadiag.analysis.explain.candidates.exhausted_data import exhausted_data
from nsadiag.analysis.explain.candidates.first_divergence import first_divergence, units
from nsadiag.analysis.explain.candidates.framework_values import framework_values
from nsadiag.analysis.explain.candidates.gradient_sync import gradient_sync
from nsadiag.analysis.explain.candidates.iteration_order import iteration_order
from nsadiag.analysis.explain.candidates.loop_exit import loop_exits
from nsadiag.analysis.explain.candidates.lost_step import lost_steps
from nsadiag.analysis.explain.candidates.stop_flags import stop_flags
from nsadiag.analysis.explain.candidates.walked_branch import walked_branches
from nsadiag.analysis.explain.context import Context

GENERATORS: tuple[Callable[[Context], Iterator[Candidate | Rejection]], ...] = (
    gradient_sync,
    loop_exits,
    detached_losses,
    branches,
    iteration_order,
    first_divergence,
    lost_steps,
    units,
    exhausted_data,
    stop_flags,
    framework_values,
    walked_branches,
)

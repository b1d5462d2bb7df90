"""The variables that a proof sets in its runs, and the record that each rank leaves of its first steps: proof.jsonl and proof.bin."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from nsadiag.evidence.documents.values import Measured, Whole

# `given`: a tensor that the outermost module was called with; `output`: of a module; `local`: a gradient before it left the
# rank; `gradient`, `parameter`: as an optimizer's step finds them; `loss`: of a backward pass; `step`: an optimizer's;
# `value`: what a line made, `pulled` its gradient; `touched`: a gradient or parameter that a line changed (`notes`: which, and the
# lines that called it);
# `loader`: of data; `dealt`: a batch's indices; `batch`: a stream's, by tensor; `joined`: those of all ranks were put together; `saved`: a state (`notes`: its kinds); `put`: one that is put back (`name`: its kind); `done`: the
# last line.
What = Literal["given", "output", "local", "gradient", "parameter", "loss", "step", "loader", "dealt", "batch", "joined", "saved", "put", "value", "pulled", "touched", "done"]  # fmt: skip
DONE = "proof.done"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The setting of one run, in the environment of its processes."""

    steps: int = 12  # of optimizers, after which a process ends
    moved: float = 0.0  # by which share parameters and inputs are moved at the start
    seed: int = 0  # which way
    stop: int = 0  # before the optimizer's step of that number, counted from 0, a process ends; 0: never
    traced: int = 0  # what each line makes in the step of that number, counted from 1; 0: none
    others: str = ""  # the run directory of the ranks that this process stands for, alone

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def asked_in(text: str) -> Asked:
    """The setting, from the environment."""
    return Asked(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A line of proof.jsonl.

    `shape` is that of the whole, `local` that of what lies here, `at` its place in the whole: a run of elements, or a start and a size in each dimension.
    """

    what: str
    step: int = 0  # that it is of: the number of optimizers' steps before it
    name: str = ""  # of a parameter or a module; of a loader its sampler
    number: int = 0  # of a call or a backward within the step; of an optimizer; of a loader
    argument: int = 0
    shape: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    at: tuple[tuple[int, int], ...] | None = None
    run: tuple[int, int] | None = None
    dtype: str = ""
    graded: bool = False  # it came with a gradient to send back: another module's output, no data
    stored: str = ""  # as numpy names it
    offset: Whole = 0  # in proof.bin
    value: Measured | None = None
    place: str = ""
    local_name: str = ""  # of an argument, in the function that is given it
    rates: tuple[Measured, ...] = ()
    notes: tuple[str, ...] = ()  # of a step: `dropout`, `random`, `batch norm`, `exchanged`, `met`, `wrapped`
    batch: int = 0
    replicas: int = 0
    rows: int = 0  # of a loader's data set
    indices: tuple[int, ...] = ()

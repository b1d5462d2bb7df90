"""Documents on the operations of a step, and on the tensors that they touch: invariants.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nsadiag.evidence.documents.values import Measured, Whole


class Checksum(NamedTuple):
    """A tensor's elements, or some spread over it: an exact checksum of their bits, their sum, that of their magnitudes."""

    name: str
    shape: tuple[int, ...]
    exact: Whole
    total: Measured
    magnitude: Measured


class Passed(NamedTuple):
    """A value that a module is given, or returns: its exact checksum, and whether it carries a gradient."""

    exact: Whole
    carries: bool


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A negative log-likelihood in the graph of a loss: of how many rows over how many classes, and of which targets."""

    rows: int
    classes: int
    direct: bool = False  # it is all of the loss, up to a division
    mean: bool = False
    counted: Measured | None = None  # rows that are not ignored
    exact: Whole = 0  # of the targets
    is_range: bool = False  # the targets are 0, 1, 2, ...
    compared_first: Whole = (
        0  # a checksum of what the scores at as many places, from the first on, are a product with
    )
    unshifted: bool = False  # they are the inputs at the same places, without the last


@dataclass(frozen=True, kw_only=True)
class Call:
    """A module or a collective that was called in a step, and what an optimizer's step found of its parameters."""

    name: str
    place: str = ""
    exchanges: bool = False  # it is a collective
    held: int = (
        0  # parameters that this optimizer trains: of the module, or behind what a collective is given
    )
    graded: int = 0  # of these, with a gradient that is not zero
    given: tuple[Passed, ...] = ()
    made: tuple[Passed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a step: forward, backward, collective, clip, unscale, step, load, save, back (the first step after a load), epoch; or what lay in memory."""

    kind: str
    place: str = ""
    name: str = ""
    evaluating: bool = False
    module: int = 0  # of those that run as the outermost, in the order of their first runs
    drops: bool = False  # it has dropout, which is switched on
    depends_on_mode: bool = False  # of a module that is evaluating: it has dropout or batch statistics
    random: Whole = 0  # a checksum of the states of torch's generators, when a forward begins
    value: Measured | None = None  # of a loss, or of a norm
    limit: Measured | None = None  # of the norm
    kept: tuple[int, ...] = ()  # optimizers whose gradients of before were still there
    unread: tuple[int, ...] = ()  # those with gradients that may be zero, as nobody waited for the GPU
    added: tuple[int, ...] | None = None  # of these, the ones whose gradients a backward added to
    rewritten: tuple[int, ...] = ()  # those whose gradients were written between their use and this backward
    optimizer: int | None = None
    settings: tuple[str, ...] = ()  # hyperparameters, by group
    held: int = (
        0  # parameters that ask for a gradient; of `rounding`, elements that have had one at each look
    )
    graded: int | None = None  # of these, with a gradient; of `rounding`, that never changed
    of: int = 0  # parameters
    since: int | None = (
        None  # of a step: the first recorded one that trained one of the parameters that this one trains
    )
    writes: bool = False  # of a step without any gradient: it has changed parameters all the same
    reduces: str = ""  # SUM, AVG, MAX, ... of a collective that reduces
    group: str = ""
    roles: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    inside: str = ""  # forward or backward
    given: int = 0  # keys of a state that is loaded
    missing: int = 0
    unexpected: int = 0
    epoch: int = 0
    shuffles: bool = False
    sampler: int = 0
    seed: int = 0
    length: int = 0
    replicas: int = 0
    replica: int = 0
    whole: Whole = 0  # a checksum of the part of the data that a sampler takes shares of; 0 where it is not known to be one
    values: tuple[Checksum, ...] = ()
    start: int = 0  # of whole tensors: the place of the first one among the optimizer's
    exacts: tuple[Whole, ...] = ()  # their checksums over every bit
    named: tuple[str, ...] = ()  # the optimizer's parameters, once
    of_models: tuple[int, ...] = ()  # the model that each of these is in; older recordings have none
    calls: tuple[Call, ...] = ()
    losses: tuple[Loss, ...] = ()
    frozen: tuple[str, ...] = ()  # parameters that do not ask for a gradient
    names: Whole = 0  # a checksum of all names and shapes
    divisor: Measured | None = None  # of the loss, at the root of its graph
    divisions: tuple[Measured, ...] = ()  # of that, divisions without products, the last one first
    averaged: bool = False  # and what was divided is a mean
    written: bool = (
        False  # gradients have been written or replaced since backward, clipping or unscaling left them
    )
    of_state: str = ""  # model, optimizer, scheduler or scaler, whose state is saved or loaded
    exact: Whole = 0  # where a state is saved, and at the first step after a load: the sum over the optimizer's parameters
    state: Whole = 0  # and over what it keeps for them; of a scheduler, a checksum of what it was made with
    apart: bool = False  # of a load: into a module that nothing that has run shares parameters with
    gone: bool = False  # and that was gone before the step was over, without having run
    same: bool = False  # and what it then held was what models that train have

    @property
    def may_keep(self) -> bool:
        """Whether gradients of before may still have been there: known, or not to be ruled out."""
        return bool(self.kept or self.unread)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The operations of a step in their order: invariants.jsonl."""

    step: int
    operations: tuple[Operation, ...]

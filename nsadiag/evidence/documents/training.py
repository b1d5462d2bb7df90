"""Documents on what a rank trains: its models as DDP and FSDP have them, gradients, loaders, settings, samples of its stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from nsadiag.evidence.documents.values import Measured, Pid, Rank, Whole

Table = dict[str, Any]  # of whatever torch or the environment says


class Tensor(NamedTuple):
    """A parameter or buffer, as a model has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Sum(NamedTuple):
    """Sums over a tensor's elements."""

    name: str
    shape: tuple[int, ...]
    total: Measured
    magnitude: Measured


@dataclass(frozen=True, kw_only=True)
class Wrap:
    """A model as it was handed to DDP or FSDP1: wraps.json."""

    wrapper: str
    model: str
    place: str
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...] = ()
    ranks: tuple[Rank, ...] = ()
    t_mono_ns: Whole = 0


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter in DDP or FSDP."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    qualified: str = ""  # its name in the whole model

    @property
    def full_name(self) -> str:
        """The name in the whole model, as far as it is known."""
        return self.qualified or self.name


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One of DDP's buckets, with the indices of its parameters."""

    index: int
    parameters: tuple[int, ...]
    elements: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class WrappedModel:
    """A model in DDP: ddp.json."""

    parameters: tuple[Parameter, ...]
    settings: Table | None = None
    comm_hook: str = ""
    ranks: tuple[Rank, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    rebuilt_buckets: tuple[Bucket, ...] = ()
    rebuilt_says: str = ""
    group: str = ""
    logged: Table | None = None
    bucket_cap_mb: float = 0.0
    bucket_sizes: str = ""
    rebuilt_bucket_sizes: str = ""

    def has(self, setting: str) -> bool:
        """Whether it was wrapped with that setting."""
        return bool((self.settings or {}).get(setting))


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit of FSDP: units.json."""

    unit: str
    kind: str
    parameters: tuple[Parameter, ...]
    group: str
    ranks: tuple[Rank, ...]
    mesh: Table | None = None
    sharding_strategy: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes of the autograd graph, by type and by module, of the step it was last counted in: graph.json."""

    step: int = 0
    nodes: int = 0
    capped: bool = False
    types: dict[str, int] | None = None
    modules: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A data loader, by the line that asks it for batches: loaders.json."""

    place: str
    pid: Pid | None = None
    workers: tuple[int, ...] = ()
    dataset: str = ""
    iterator: str = ""
    sampler: str | None = None  # none of a dataset that is only iterated
    t_wall_ns: Whole = 0


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """A process group."""

    name: str
    ranks: tuple[Rank, ...]
    description: str = ""
    backend: str = ""
    timeout_s: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Versions, flags and environment of a rank: settings.json."""

    when: str = ""
    step: int = 0
    t_wall_ns: Whole = 0
    versions: Table | None = None
    flags: Table | None = None
    attention: Table | None = None
    autocast: dict[str, Table] | None = None
    autocast_now: dict[str, Table] | None = None
    model: Table | None = None
    optimizer: Table | None = None
    groups: tuple[GroupSettings, ...] = ()
    environment: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Parameters that had no gradient: of an optimizer at a change (ungraded.jsonl), or of a model now (ungraded.json)."""

    missing: tuple[str, ...]
    count: int = 0
    of: int = 0
    step: int = 0
    optimizer: int = 0
    t_mono_ns: Whole = 0


@dataclass(frozen=True, kw_only=True)
class MissingNow:
    """Parameters in DDP that had no gradient at a look: ungraded.json."""

    step: int = 0
    optimizers: int = 0
    models: tuple[Missing, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """A checkpointed function that backward ran with other modules or random numbers than forward: recomputed.jsonl."""

    function: str
    place: str
    step: int
    defined: str = ""
    forward: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    rebound: dict[str, tuple[str, ...]] | None = None  # parameters that a variable named then, and now
    redrawn: bool = False  # it draws random numbers, and drew others in backward

    @property
    def differs(self) -> bool:
        """Whether backward ran other modules or parameters. What is computed again may be the first part of it."""
        return self.forward[: len(self.recomputed)] != self.recomputed or bool(self.rebound)


@dataclass(frozen=True, kw_only=True)
class Unwaited:
    """An asynchronous collective that the user never waited for: unwaited.jsonl."""

    op: str
    group: str
    number: int
    place: str
    issued_step: int = 0
    step: int = 0
    dropped: bool = False
    parameter: str | None = None


class InputSum(NamedTuple):
    """Sums over a tensor that a model was given."""

    shape: tuple[int, ...]
    total: Measured
    magnitude: Measured


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """The tensors that the model was given at a step: given.jsonl."""

    step: int
    tensors: tuple[InputSum, ...]


@dataclass(frozen=True, kw_only=True)
class Unheld:
    """Parameters with gradients that are in no optimizer, at a step: unheld.jsonl."""

    step: int
    optimizer: str
    of: int
    graded: int
    stale_count: int
    unheld_count: int
    alike: bool
    stale: tuple[tuple[Whole, ...], ...]  # shapes that the optimizer holds, and no module has
    unheld: tuple[Sum, ...]
    # Of the gradient of each, the sum of its magnitudes; older recordings have none.
    gradients: tuple[Measured | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over a model's parameters and buffers at one step: replicas.jsonl, evaluated.jsonl."""

    step: int
    parameters: tuple[Sum, ...]
    buffers: tuple[Sum, ...] = ()
    elements: int = 0
    since: int | None = None  # steps since the wrap
    # Numbers of the wrap and of the optimizer; older recordings have none.
    subject: tuple[int, int] | None = None
    issued: Whole | None = None  # collectives
    backwards: int | None = None
    shadowed: int = 0
    written: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    rates: tuple[Measured, ...] = ()
    model: str = ""
    call: int = 0
    place: str = ""
    t_mono_ns: Whole = 0


@dataclass(frozen=True, kw_only=True)
class Registered:
    """Hooks, handlers and the like that one line had registered by a step: piles.jsonl."""

    kind: str
    place: str
    step: int
    steps: int
    alive: int
    made: int


@dataclass(frozen=True, kw_only=True)
class StartedThread:
    """A thread that the interpreter waits for at its end: threads.jsonl."""

    name: str
    place: str
    tid: int | None = None
    step: int = 0


class SampledFrame(NamedTuple):
    """One frame of a sample."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Stacks of a rank at one moment, innermost first: of its main thread, and of one `beside`: samples.jsonl."""

    t_mono_ns: Whole
    frames: tuple[SampledFrame, ...]
    beside: tuple[SampledFrame, ...] = ()

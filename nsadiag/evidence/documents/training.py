"""What a rank trains: its models as DDP and FSDP have them, its loaders, its settings."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.evidence.documents.values import Pid


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A data loader, by the line that asks it for batches: loaders.json."""

    place: str
    pid: Pid | None = None
    workers: tuple[int, ...] = ()
    dataset: str = ""
    iterator: str = ""
    sampler: str | None = None  # none of a dataset that is only iterated
    t_wall_ns: int = 0

"""The isolation of a rehearsal: files and network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """`files` and `network` have the reason for which they were not kept apart, though it was asked for."""

    files_apart: bool = False
    network_apart: bool = False
    files: str = ""
    network: str = ""

    def lines(self) -> Iterator[str]:
        """Sentences on either, where it was to be kept apart."""
        if self.files_apart:
            yield "files: what it wrote below the working directory is gone (--in-place keeps it)"
        elif self.files:
            yield f"files: it wrote where it runs, as no overlay could be laid over its directory: {self.files}"
        if self.network_apart:
            yield "network: cut off (--network leaves it)"
        elif self.network:
            yield f"network: refused by the ranks' Python sockets alone: {self.network}"

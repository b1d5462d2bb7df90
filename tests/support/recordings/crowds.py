"""Recordings of a few ranks made into jobs of very many: one of those that wait is copied, all else stays."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsadiag.analysis.ingest.run_directory import load_ranks
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.scale.digests.make import digest_of
from nsadiag.analysis.scale.digests.shape import Digest, SharedValue
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.documents.values import rows_of
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.pickles import read_pickle
from nsadiag.evidence.ring.blackbox import HEADER

from .golden import archive_of, unpack


class CannotBeCopied(Exception):
    """A rank whose part is its own."""


class DumpSet:
    """A recording, and how the files of its ranks read in a job of `world_size`."""

    def __init__(self, run: RunDir, copied: int, world_size: int) -> None:
        self.run, self.copied, self.world_size = run, copied, world_size
        self.few = sorted(directory.rank for directory in run.ranks())
        if any(copied in g and len(g) < len(self.few) for g in self._groups(copied)):
            raise CannotBeCopied(f"rank {copied} is in a smaller group")
        self._written: dict[
            tuple[Path, int, Path], Path
        ] = {}  # copies that differ in nothing share their files
        self._raw: dict[int, list[tuple[Path, bytes]]] = {n: list(self._files(n)) for n in self.few}

    def _groups(self, rank: int) -> list[list[int]]:
        return [g.get("ranks") or [] for g in read_json(self.run.rank(rank).settings, {}).get("groups", [])]

    def original(self, rank: int) -> int:
        return rank if rank in self.few else self.copied

    def _files(self, rank: int) -> Iterator[tuple[Path, bytes]]:
        folder = self.run.rank(rank).path
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            raw = path.read_bytes()
            if path.suffix == ".json":
                raw = json.dumps(self._widened(json.loads(raw))).encode()
            elif path.suffix == ".pickle":
                raw = pickle.dumps(self._widened(read_pickle(path)))
            yield path.relative_to(folder), raw

    def _widened(self, value: Any) -> Any:
        """What names all ranks names all of the larger job."""
        if isinstance(value, dict):
            return {k: self._all_ranks(v) if k == "ranks" else self._widened(v) for k, v in value.items()}
        return [self._widened(v) for v in value] if isinstance(value, list) else value

    def _all_ranks(self, ranks: Any) -> Any:
        everyone = list(range(self.world_size))
        if ranks == self.few:
            return everyone
        return str(everyone) if ranks == str(self.few) else self._widened(ranks)

    def write_rank(self, folder: RunDir, rank: int) -> None:
        """The files of that rank in a run directory."""
        directory = folder.rank(rank)
        for name, raw in self._raw[self.original(rank)]:
            path = directory.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            own = self._renumbered(path.name, raw, rank)
            first = self._written.setdefault((folder.path, self.original(rank), name), path)
            if own is raw and first != path:
                os.link(first, path)
            else:
                path.write_bytes(own)

    def _renumbered(self, name: str, raw: bytes, rank: int) -> bytes:
        if name == "meta.json":
            return json.dumps({**json.loads(raw), "rank": rank, "world_size": self.world_size}).encode()
        if name == "blackbox.bin" and len(raw) >= HEADER.size:
            fields = list(HEADER.unpack_from(raw))
            fields[5:7] = [rank, self.world_size]
            return HEADER.pack(*fields) + raw[HEADER.size :]
        return raw

    def write_frame(self, folder: RunDir) -> None:
        """All that is not of one rank."""
        for path in self.run.path.rglob("*"):
            if path.is_file() and path.parts[len(self.run.path.parts)] != "ranks":
                target = folder.path / path.relative_to(self.run.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    os.link(path, target)
        ends, watch = read_json(self.run.ends, {}), read_json(self.run.watch, {})
        for path, document in ((folder.ends, self.ends(ends)), (folder.watch, self.watch(watch))):
            path.unlink(missing_ok=True)
            path.write_text(json.dumps(document))

    def ends(self, ends: dict[str, Any]) -> dict[str, Any]:
        own = {rank: ends.get(str(self.original(rank))) for rank in range(self.world_size)}
        return {str(rank): end for rank, end in own.items() if end}

    def watch(self, watch: dict[str, Any]) -> dict[str, Any]:
        looks = [{**look, "motions": self.motions(look["motions"])} for look in watch.get("looks", [])]
        return {**watch, "looks": looks}

    def motions(self, motions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        of = {m["rank"]: m for m in motions}
        ranks = (r for r in range(self.world_size) if self.original(r) in of)
        return [{**of[self.original(rank)], "rank": rank} for rank in ranks]

    def digests(self, scratch: RunDir, per_node: int = 8) -> Iterator[Digest]:
        """Of all ranks as their nodes would make them: the few that differ are read, and the copies follow the copied."""
        self.write_frame(scratch)
        for rank in self.few:
            self.write_rank(scratch, rank)
        looks = read_json(self.run.watch, {}).get("looks", [])
        motions, look = (looks[-1]["motions"], looks[-1]["second"]) if looks else ([], 0)
        of_few = digest_of(
            load_ranks(scratch, self.few), host="", look=look, motions=rows_of(RankMotion, motions)
        )
        for first in range(0, self.world_size, per_node):
            ranks = tuple(range(first, min(first + per_node, self.world_size)))
            yield self._of_node(of_few, f"node{first // per_node:05d}", ranks)

    def _of_node(self, few: Digest, host: str, ranks: tuple[int, ...]) -> Digest:
        def shown(values: tuple[SharedValue, ...]) -> tuple[SharedValue, ...]:
            here = (replace(v, ranks=tuple(r for r in ranks if self.original(r) in v.ranks)) for v in values)
            return tuple(value for value in here if value.ranks)

        places = [few.ranks.index(self.original(rank)) for rank in ranks]
        return replace(
            few,
            host=host,
            ranks=ranks,
            calls=shown(few.calls),
            traits={name: found for name, values in few.traits.items() if (found := shown(values))},
            counters={n: tuple(column[place] for place in places) for n, column in few.counters.items()},
        )


def dumps_of(name: str, folder: Path, world_size: int) -> tuple[DumpSet, dict[str, Any]]:
    """The recording with one of those that wait copied, and its own verdict."""
    run = unpack(archive_of(name), folder)
    verdict = judge(load_cell(run.path)).to_json()
    ranks = [directory.rank for directory in run.ranks()]
    for rank in reversed([r for r in ranks if r not in verdict["guilty_ranks"]] or ranks[-1:]):
        try:
            return DumpSet(run, rank, world_size), verdict
        except CannotBeCopied:
            continue
    pytest.skip("each rank is in a group of its own")

"""Puts together what the agents of several nodes wrote of one job: how ranks ended, in node 0's time, and what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.cluster.protocol.clock import Offset
from nsadiag.evidence.documents.files import read_text
from nsadiag.evidence.layout import CLOCK, RunDir, make_private_dir, read_json, write_json, write_private

MOST_SOURCES = 64
NO_WORD, MOST_NAME = re.compile(r"[^\w.+-]"), 60  # of a source's name, which another node gives


@dataclass(frozen=True, kw_only=True)
class Story:
    """The record that node 0 has of another node at the end of a job."""

    node_rank: int
    name: str
    directory: str  # there
    shared: bool  # that directory is node 0's own
    ranks: Sequence[int] = ()  # that appeared there, as far as it was heard
    offset: Offset | None = None
    lost_s: float | None = None  # since when, from the start of the job
    why: str = "its agent died, or the network to it"
    left: Sequence[str] = ()  # files that did not come, and why


def merge(run: RunDir, first: str, others: Sequence[Story]) -> None:
    """Writes ends.json and watch.json of the whole job, each node's clock.json, and the sources that came with it."""
    ours = _document(run.node(first) / run.watch.name)
    ends = dict(_document(run.node(first) / run.ends.name))
    nodes, gaps = [{"node_rank": 0, "name": first, **_about(ours)}], list[str]()
    codes, alive = [ours.get("launcher_exit_code")], list(ours.get("left_alive") or [])
    for story in others:
        home = run.node(story.name)
        theirs = _document(home / run.watch.name)
        if story.offset is not None:
            about = {"node_rank": story.node_rank, **dataclasses.asdict(story.offset)}
            with contextlib.suppress(OSError):  # something that was sent lies there: the clock is a gap
                write_json(make_private_dir(home) / CLOCK, about)
        ends |= _in_our_time(_document(home / run.ends.name), theirs, ours, story.offset)
        codes.append(theirs.get("launcher_exit_code"))
        alive += theirs.get("left_alive") or []
        gaps += _gaps(story, theirs)
        where = {"directory": story.directory, "shared": story.shared, "lost_s": story.lost_s}
        where |= {"ranks": list(story.ranks)}
        nodes.append({"node_rank": story.node_rank, "name": story.name, **where, **_about(theirs)})
        gaps += _take_sources(run, story)
    failed = [code for code in codes if code]
    write_json(run.ends, {rank: ends[rank] for rank in sorted(ends, key=int)})
    whole = {"launcher_exit_code": failed[0] if failed else codes[0], "left_alive": alive}
    write_json(run.watch, {**ours, **whole, "nodes": nodes, "gaps": gaps})


def _document(path: Path) -> dict[str, Any]:
    return dict(read_json(path, {}))


def _about(watch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: watch.get(key) for key in ("launcher_exit_code", "stopped", "left_alive")}


def _in_our_time(
    ends: Mapping[str, Any], theirs: Mapping[str, Any], ours: Mapping[str, Any], offset: Offset | None
) -> Iterator[tuple[str, Any]]:
    """Their ends, in seconds since node 0 started its part."""
    if offset is None or "started_mono_ns" not in theirs or "started_mono_ns" not in ours:
        shift = 0.0
    else:
        shift = (theirs["started_mono_ns"] + offset.mono_offset_ns - ours["started_mono_ns"]) / 1e9
    for rank, end in ends.items():
        t_s = end.get("t_s")
        yield rank, {**end, "t_s": None if t_s is None else t_s + shift}


def _gaps(story: Story, watch: Mapping[str, Any]) -> Iterator[str]:
    at = f"{story.name}: "
    if story.lost_s is not None:
        yield f"{at}node {story.node_rank} stopped responding {story.lost_s:.0f} s into the job: {story.why}"
    if not watch and not story.shared:
        yield f"{at}how its ranks ended did not come; what there is lies in {story.directory} there"
    elif not watch:
        yield f"{at}its agent did not write how its ranks ended"
    if watch and not story.ranks and story.lost_s is None:
        yield f"{at}no rank of the job appeared there: does its launcher know the other nodes?"
    if story.left:
        count = (
            f"{len(story.left)} files did not come, among them" if len(story.left) > 1 else "did not come:"
        )
        yield f"{at}{count} {story.left[0]}"
    if story.offset is None:
        yield f"{at}its clocks were never compared with node 0's"


def _take_sources(run: RunDir, story: Story) -> Iterator[str]:
    """Files of the user's that only that node has; a gap for each that is not the same there."""
    folder = run.node(story.name) / "sources"
    theirs, ours = _document(folder / "index.json"), _document(run.sources_index)
    for file, name in theirs.items():
        text = _text(folder / Path(str(name)).name)
        if text is None:
            continue
        if file in ours:
            if _text(run.sources / ours[file]) not in (text, None):
                yield f"{story.name}: {file} is not the same there as on node 0"
        elif len(ours) < MOST_SOURCES:
            make_private_dir(run.sources)
            ours[file] = f"{len(ours):02d}-{NO_WORD.sub('_', Path(file).name)[-MOST_NAME:]}"
            write_private(run.sources / ours[file], text)
    if theirs:
        write_json(run.sources_index, ours)


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return read_text(path)
    return None

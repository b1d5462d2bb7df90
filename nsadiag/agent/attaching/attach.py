"""Ranks of a job that was not started by us, as the watch knows them, with a directory for each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nsadiag.agent import processes
from nsadiag.agent.attaching.finding import AttachedRank, living_process
from nsadiag.agent.namespaces import pid_of
from nsadiag.agent.processes import End, Process
from nsadiag.agent.watching.progress import Progress
from nsadiag.agent.watching.state import RankState
from nsadiag.evidence.documents.files import read_evidence
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, this_node, write_json, write_private
from nsadiag.evidence.ring.reader import Pulse
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.evidence.user_code import roots_of

RECORDED = ("blackbox.bin", "ddp.json", "exception.json", "leaving.json", "faults.log",
            "samples.jsonl", "gaps.jsonl", "meta.json")  # fmt: skip


def states_of(ranks: list[AttachedRank], run: RunDir) -> list[RankState]:
    """The ranks as the watch knows them, each with its meta.json written."""
    found = []
    for rank in ranks:
        directory = run.rank(rank.rank)
        make_private_dir(directory.path)
        write_json(directory.meta, _meta(rank))
        found.append(
            RankState(directory=directory, pid=rank.process.pid, process=rank.process, progress=None)
        )
    return found


def _meta(rank: AttachedRank) -> dict[str, Any]:
    pid, environment = rank.process.pid, rank.environment
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        cwd = str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        words, cwd = [], ""
    return {
        "rank": rank.rank,
        "world_size": rank.world_size,
        "local_rank": int(environment.get("LOCAL_RANK", rank.rank)),
        "pid": pid,
        "ppid": processes.parent(rank.process.pid),
        "host": this_node(),
        "argv": mask_command(words),
        "cwd": cwd,
        "restart": int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "logs": {},
        "user_code": roots_of(words, processes.parent(rank.process.pid) or 0),
        **({"meeting": rank.meeting} if rank.meeting else {}),
    }


def socket_dir_of(ranks: Iterable[Process]) -> Path:
    """The directory of the ranks' worker-server sockets, if `nsadiag run` started them."""
    named = (processes.environment(r.pid, ("NSADIAG_SOCKET_DIR",)).get("NSADIAG_SOCKET_DIR") for r in ranks)
    return Path(next((name for name in named if name), "/nonexistent"))


def ranks_of_run(source: RunDir, run: RunDir) -> list[RankState]:
    """The ranks that `nsadiag run` has, or left, in `source`, with what they recorded copied into `run`."""
    found = []
    for theirs in source.ranks():
        meta = read_json(theirs.meta, {})
        if "pid" not in meta:
            continue
        directory = run.rank(theirs.rank)
        make_private_dir(directory.path)
        for name in RECORDED:
            with contextlib.suppress(OSError):
                write_private(directory.path / name, read_evidence(theirs.path / name))
        try:
            # The living ring, not the copy: it may move while we look.
            progress = Progress(Pulse(theirs.blackbox), meta["pid"])
        except (OSError, ValueError):
            progress = None
        process = living_process(pid_of(meta), source)
        end = None if process else End(t_mono_ns=_last_moment(progress))
        found.append(
            RankState(directory=directory, pid=meta["pid"], process=process, progress=progress, end=end)
        )
    return found


def _last_moment(progress: Progress | None) -> int:
    last = progress.pulse.last() if progress else None
    return int(last["t_ns"][0]) if last is not None else time.monotonic_ns()

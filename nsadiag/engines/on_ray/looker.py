"""An actor on a node of somebody else's job: it has the processes there captured, and takes nothing that the job could need."""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.deadlines import programs

MODULE = "nsadiag.commands.attach.ray_node"
LOOK_S = 300.0
START_S = 60.0
ID_BYTES = 28


class Looker:
    """One question, one answer."""

    def look(self, question: Mapping[str, Any]) -> bytes:
        """A tar archive of what a process of its own leaves behind. Raises RuntimeError with its last words."""
        with tempfile.TemporaryDirectory(prefix="nsadiag-") as folder:
            document = json.dumps({**question, "offset": id_offset(), "logs": session_logs()})
            done = programs.run([sys.executable, "-m", MODULE, folder], text=document, seconds=LOOK_S)
            if done.returncode:
                words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                raise RuntimeError(words[-1])
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                archive.add(folder, arcname=".")
            return packed.getvalue()


def id_offset() -> int:
    """The offset at which references of this Ray keep their id, by one of our own; -1 where it is not there."""
    import ray

    told = os.urandom(ID_BYTES)
    reference = ray.ObjectRef(told, skip_adding_local_ref=True)
    return ctypes.string_at(id(reference), type(reference).__basicsize__).find(told)


def session_logs() -> str:
    """The directory in which Ray on this node keeps the logs of its session."""
    import ray

    node = ray._private.worker._global_node
    return str(node.get_logs_dir_path()) if node else ""


def look_on_nodes(
    ray: Any, questions: Mapping[str, Mapping[str, Any]], into: Path
) -> tuple[set[str], list[str]]:
    """Ask each node, by its id, and unpack the answers; the nodes that answered, and gaps for the others."""
    remote = ray.remote(Looker)
    actors = {node: remote.options(**on_node(ray, node)).remote() for node in questions}
    asked = {actors[node].look.remote(question): node for node, question in questions.items()}
    try:
        return _answers(ray, asked, into)
    finally:
        for actor in actors.values():
            ray.kill(actor)


def on_node(ray: Any, node: str) -> dict[str, Any]:
    """Options of an actor that is to be on that node, and to take none of its resources."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": strategy}


def _answers(ray: Any, asked: dict[Any, str], into: Path) -> tuple[set[str], list[str]]:
    found, gaps = set(), []
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_S + START_S)
    for reference in ready:
        try:
            _unpack(ray.get(reference), into)
            found.add(asked[reference])
        except Exception as error:
            gaps.append(f"node {asked[reference][:8]}: {_first_line(error)}")
    gaps += [f"node {asked[reference][:8]} did not answer in {LOOK_S + START_S:g} s" for reference in late]
    return found, gaps


def _unpack(packed: bytes, into: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        kept = [member for member in archive if member.isdir() or member.isreg()]
        archive.extractall(into, kept, filter="data")


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def questions_of(processes: Iterable[Mapping[str, Any]], roots: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By node, what its actor is asked for."""
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        rows = found.setdefault(process["node"], {"processes": [], "user_code": list(roots)})["processes"]
        rows.append({"number": process["number"], "pid": process["pid"]})
    return found

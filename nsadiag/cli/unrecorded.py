"""`nsadiag run --passthrough` where the job cannot be recorded: the job alone, in the place of nsadiag."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nsadiag.agent.job import launch
from nsadiag.agent.job.guard import PR_SET_CHILD_SUBREAPER, PYTHONS_OWN, execute

YES = ("1", "true", "t", "yes", "y", "on")
VARIABLE = "NSADIAG_PASSTHROUGH"
DEFAULT_PORT = 29500  # torchrun's own


def start_instead(
    typed: Sequence[str], commands: Mapping[str, Any], defaults: Mapping[str, Any], why: str
) -> None:
    """Becomes the job of the line as typed, if that is `run --passthrough`; returns where it is not, or where the job was started."""
    if list(typed[:1]) != ["run"] or "run" not in commands or launch.has_started():
        return
    words = list(typed[1:])
    # What does not fit is passed over: it is the reason why we are here.
    context = commands["run"].make_context(
        "run", list(words), resilient_parsing=True, default_map=defaults.get("run", {})
    )
    options = context.params
    if not (options.get("passthrough") or os.environ.get(VARIABLE, "").lower() in YES):
        return
    command = _on_its_node(_command(words, context.args), words, options)
    if command:
        _say(f"the job runs, and is not recorded: {why}")
        _become(command, stdout_is_for_json=bool(options.get("as_json")))


def _command(words: list[str], rest: list[str]) -> list[str]:
    """The job, which begins behind `--` where an option that is not known stands before it."""
    if rest and not rest[0].startswith("-"):
        return rest
    return words[words.index("--") + 1 :] if "--" in words else []


def _on_its_node(command: list[str], words: list[str], options: Mapping[str, Any]) -> list[str]:
    """The line as this node is to run it; empty where it is not known how: a torchrun that was not told of the other nodes would train alone."""
    if options.get("engine") == "ray":
        return []
    asked = any(word.partition("=")[0] == "--nnodes" for word in words[: -len(command) or None])
    if not command or not asked or options.get("nnodes") == 1:
        return command
    from nsadiag.cluster.place import Place
    from nsadiag.commands import nodes

    line = nodes.line_of(command)
    if line.behind is None or line.names_its_nodes:
        return command
    about = {name: options.get(name) for name in ("nnodes", "node_rank", "master_addr")}
    if None in about.values():
        return []
    return nodes.completed(line, Place(**about), f"{about['master_addr']}:{DEFAULT_PORT}")  # type: ignore[arg-type]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"nsadiag: {text}\n".encode(errors="replace"))


def _become(command: list[str], *, stdout_is_for_json: bool) -> None:
    """Returns where it cannot be started either: then the error is said as ever."""
    from nsadiag.cluster.protocol.tokens import TOKEN_VARIABLE

    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if stdout_is_for_json:
        os.dup2(2, 1)
    for number in PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    environment = {name: value for name, value in os.environb.items() if name != TOKEN_VARIABLE.encode()}
    with contextlib.suppress(OSError):
        execute([os.fsencode(word) for word in command], environment)

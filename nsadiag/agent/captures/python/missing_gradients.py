"""Parameters in DDP that have no gradient at this moment: the rank tells, where none of its threads is in a backward pass."""

from __future__ import annotations

from typing import Any

from nsadiag.agent.captures.target import NotApplicable, Target
from nsadiag.evidence.layout import UNGRADED_HANDLER, RankDir, write_json
from nsadiag.evidence.stacks import stacks_in

IN_BACKWARD = "_engine_run_backward"


def ungraded(target: Target) -> dict[str, Any]:
    """ungraded.json: which parameters of models in DDP have no gradient, of a rank that is past its backward."""
    if not RankDir(path=target.directory.path.parents[1]).ddp.exists():
        raise NotApplicable("the rank has no model in DDP")
    threads = stacks_in(target.directory)
    if not threads:
        raise NotApplicable("whether the rank is in a backward pass is not known: no stacks")
    if any(frame.name == IN_BACKWARD for thread in threads for frame in thread.frames):
        raise NotApplicable("the rank is in a backward pass")
    # It would not answer before that thread lets go, and a thread of the server would be lost to the question.
    if any(thread.owns_gil for thread in threads):
        raise NotApplicable("a thread of the rank holds the interpreter lock")
    told = target.server.ask_json(UNGRADED_HANDLER)
    if not told:
        raise NotApplicable("the rank is in a backward pass by now, or is not recorded")
    write_json(target.directory.ungraded, told)
    return {"models": len(told.get("models", []))}

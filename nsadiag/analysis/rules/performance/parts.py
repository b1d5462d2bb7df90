"""The parts of a step: before its forward, forward, backward."""

from __future__ import annotations

from collections.abc import Callable

PARTS = ("input_s", "forward_s", "backward_s")


def doing_in(part: str, seconds: Callable[[str], float]) -> str:
    """The name of the part; time before a forward goes to the loader, to saving, or to the loop itself."""
    if part != "input_s":
        return part.removesuffix("_s")
    if seconds("saving_s") > seconds("input_s") / 2:
        return "saving"
    return "input" if seconds("loader_s") > seconds("input_s") / 2 else "work between steps"

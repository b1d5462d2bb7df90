"""`confirmed_if`: a small closed vocabulary, read into plain values that analysis judges by."""

from __future__ import annotations

import re

from nsadiag.errors import UsageError

METRICS = {
    "step time": "step_s_median",
    "forward time": "forward_s_median",
    "backward time": "backward_s_median",
    "compute time": "compute_s_mean",
    "waiting time": "peers_s_mean",  # for peers
    "input time": "input_s_mean",
    "cpu time": "step_cpu_s_median",  # of a step; other jobs on the machine change it little
    "wall time": "wall_s",
    "peak memory": "peak_mib",  # of the GPU where there is one, else the resident set
}
_METRIC = "(?P<metric>" + "|".join(METRICS) + ")"
_FORMS = {
    "only": r"only (?P<side>a|b) (?:is (?P<what>\w+)|fails)",
    "both": r"a is (?P<a>\w+) and b is (?P<b>\w+)",
    "verdicts": r"verdicts differ",
    "parity": r"b differs from a",
    "shape": _METRIC + r" is (?P<shape>constant|linear|superlinear)",
    "ratio": _METRIC + r" of (?P<side>a|b) exceeds (?P<times>\d+(?:\.\d+)?) times (?P<other>a|b)",
    "stands": r"it stands in (?P<phase>forward|backward|optimizer|data)",
}
EXAMPLES = (
    "only b fails", "only b is hung", "only a is ddp_ready_twice", "a is healthy and b is slow",
    "verdicts differ", "b differs from a", "step time is linear", "peak memory of b exceeds 1.5 times a", "it stands in backward",
)  # fmt: skip


def parse_criterion(text: str) -> dict[str, str]:
    """`form`, and what that form names. Raises UsageError on anything else."""
    words = " ".join(text.split())
    for form, pattern in _FORMS.items():
        match = re.fullmatch(pattern, words)
        if match:
            found = {name: value for name, value in match.groupdict().items() if value is not None}
            if "metric" in found:
                found["metric"] = METRICS[found["metric"]]
            return {"form": form, **found}
    raise UsageError(f"confirmed_if is {text!r}", f"write for example: {'; '.join(EXAMPLES)}")


def settings_needed(criterion: dict[str, str]) -> tuple[int, int | None]:
    """The fewest and the most settings that it can judge."""
    if criterion["form"] == "stands":
        return 1, 1
    if criterion["form"] == "shape":
        return (2 if criterion["shape"] == "constant" else 3), None
    return 2, None

"""A comparison in words: which parameters differ and which do not, the pattern, the fix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from nsadiag.analysis.matrix.parity.compare import Comparison
from nsadiag.analysis.matrix.parity.difference import Difference
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.spans import shortened, spelled

ALIKE = 0.02  # factors this close to each other are one factor
NUMBERED = re.compile(r"^((?:[^.]+\.)*?[^.\d][^.]*)\.(\d+)\.(.+)$")


def summary_of(found: Comparison, control: str) -> str:
    """One sentence."""
    count, of = len(found.differing), len(found.names)
    after = f"at step {found.step}" if found.step else "in the first step"
    if found.what == "number":
        return f"{_names(found.differing)}: no numbers (inf or nan) {after}, and finite ones in {control}, which should compute the same."
    if found.what == "loss":
        ours, theirs = (loss_text(loss) for loss in found.losses)
        spread = f", and so do gradients of {count} of {of} parameters" if count else ""
        return f"The loss is {ours} {after}, {theirs} in {control}, which computes the same on the same data{spread}."
    if found.what == "missing":
        cut = [d.parameter for d in found.differing if d.nothing]
        left = count - len(cut)
        others = f"; {left} {'other differs' if left == 1 else 'others differ'}, too" if left else ""
        return f"No gradient reaches {shortened(cut)} {after}, and one does in {control}, which should compute the same{others}."
    if found.what == "clipping":
        return f"Clipping left other gradients than in {control}: they agree before it, and differ after it ({after})."
    if found.what == "update":
        return f"The optimizer's step {found.step} changed {_names(found.differing)} otherwise than in {control}, although the gradients agree."
    return f"Gradients are wrong {after}: {count} of {of} parameters differ from {control}, which should compute the same. {pattern_of(found)}"


def pattern_of(found: Comparison) -> str:
    """A property that the differing parameters have in common."""
    differing = found.differing
    factor = common_factor(differing)
    if differing and all(d.apart for d in differing):
        if all(d.averaged for d in differing):
            return "Each rank has gradients of its own, whose mean is the control's: they are not averaged over ranks."
        return "The ranks do not hold the same gradients."
    where = scope(found)
    if factor is not None:
        return f"{where} {_have(len(differing))} {factor:.4g} times the control's gradient."
    return (
        f"{where}; the worst is {differing[0].parameter}, off by {size(differing[0])}." if differing else ""
    )


def common_factor(differing: Iterable[Difference]) -> float | None:
    """The factor that explains all of them, if one does."""
    found = list(differing)
    ratios = [d.ratio for d in found if d.ratio is not None and d.scaled and not d.apart]
    if not found or len(ratios) < len(found):
        return None
    middle = float(median(ratios))
    return middle if all(abs(r - middle) <= ALIKE * abs(middle) for r in ratios) else None


def scope(found: Comparison) -> str:
    """The differing parameters, by the numbers of their blocks: `all of blocks.0-2; none of blocks.3, norm, head`."""
    bad = {d.parameter for d in found.differing}
    if not found.agreeing:
        return "All parameters"
    groups: dict[str, list[bool]] = defaultdict(list)
    for name in found.names:
        groups[_group(name)].append(name in bad)
    whole = [group for group, marks in groups.items() if all(marks)]
    part = [group for group, marks in groups.items() if any(marks) and not all(marks)]
    none = [group for group, marks in groups.items() if not any(marks)]
    told = [f"all of {_ranges(whole)}"] if whole else []
    if part:
        named = [d.parameter for d in found.differing if _group(d.parameter) in part]
        told.append(shortened(named))
    if none:
        told.append(f"none of {_ranges(none)}")
    text = "; ".join(told)
    return text[:1].upper() + text[1:] if whole else text


def _group(name: str) -> str:
    """The numbered block that a parameter belongs to, else its module."""
    numbered = NUMBERED.match(name)
    return f"{numbered[1]}.{numbered[2]}" if numbered else name.rpartition(".")[0] or name


def _ranges(groups: list[str]) -> str:
    """`blocks.0, blocks.1, blocks.2, head` as `blocks.0-2, head`."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for group in groups:
        stem, _, last = group.rpartition(".")
        number = natural(last)
        if number is not None and stem:
            numbers[stem].append(number)
        else:
            numbers[group] = []
    told = []
    for stem, members in numbers.items():
        told += [f"{stem}.{run}" for run in spelled(members).split(",")] if members else [stem]
    return shortened(told)


def fix_of(found: Comparison, factors: str) -> str:
    """In the user's terms; `factors` are the settings in which the two runs differ."""
    if found.what == "loss":
        advice = "forward computes something else: look at how the loss is averaged over micro-batches, ranks and tokens, at masks, and at norms over the batch"
    elif found.what == "missing":
        advice = (
            "something cuts the graph (detach(), no_grad(), .data, an output that is not used), drops the gradient before the "
            "optimizer's step, or computes with other parameters in backward: a function checkpointed in a loop must bind its variables"
        )
    elif found.what == "clipping":
        advice = "the norm must be taken over all shards: use the wrapper's own clip_grad_norm_ (FSDP1), or torch's on DTensors (FSDP2)"
    elif found.what == "update":
        advice = "give the optimizer the same parameters, groups, learning rate and weight decay in both"
    elif found.differing and all(d.averaged for d in found.differing):
        advice = "average gradients over ranks before the optimizer's step: call the wrapped model, and leave no_sync() before the last backward"
    elif common_factor(found.differing) is not None:
        advice = "a factor is missing or applied twice: average gradients over ranks once, divide the loss by the number of micro-batches once, unscale once"
    else:
        advice = (
            "the loss agrees, so forward is right and backward is not: a checkpointed function must compute again what it computed "
            "(bind loop variables: checkpoint(block, x); keep preserve_rng_state; change nothing in place that backward needs)"
        )
    return f"{advice[:1].upper()}{advice[1:]}. The two runs differ in {factors}."


def size(difference: Difference) -> str:
    """The relative difference as a reader takes it in."""
    if difference.relative == float("inf"):
        return "no number"
    return f"{difference.relative:.0%}" if difference.relative >= 0.01 else f"{difference.relative:.1e}"


def _names(differing: tuple[Difference, ...]) -> str:
    return shortened([d.parameter for d in differing])


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def loss_text(loss: float | None) -> str:
    return "no number" if loss is None else f"{loss:.6g}"

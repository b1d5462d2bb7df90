"""Parts of sentences that verdicts, reports and commands share: numbers with their nouns, ranks, calls, tensors."""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Collection, Iterable, Sequence

from nsadiag.evidence.spans import rank_names

# The flight recorder's names of types.
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64",
}  # fmt: skip


OF_A_RANK = re.compile(r"rank (\d+): (.+)", re.DOTALL)


def plain_path(file: str) -> str:
    """`/home/me/train.py` of `/home/me/runs/../train.py`, as Python has the path of a script that was started as `../train.py`."""
    return os.path.normpath(file) if "/../" in file else file


def count(number: int, noun: str) -> str:
    """`no step`, `1 step`, `3 steps`."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number or 'no'} {noun}{plural * (number > 1)}"


def rate(per_s: float) -> str:
    """`1,270`, `19.5`, `0.0123`: three significant digits, and never an exponent."""
    if not per_s > 0:
        return "0"
    rounded = float(f"{per_s:.3g}")
    if rounded >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:.3g}" if rounded >= 1e-4 else f"{rounded:.9f}".rstrip("0").rstrip(".") or "0"


def seconds(value: float) -> str:
    """`45 ms`, `1.2 s`."""
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def all_of(number: int, noun: str = "rank") -> str:
    """`the one rank`, `both ranks`, `all 8 ranks`."""
    return {1: f"the one {noun}", 2: f"both {noun}s"}.get(number, f"all {number:,} {noun}s")


def these(ranks: Collection[int]) -> str:
    """`rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' * (len(ranks) > 1)} {rank_names(ranks)}"


def are(names: Collection[object]) -> str:
    """The verb behind so many names."""
    return "is" if len(names) == 1 else "are"


def was(names: Collection[object]) -> str:
    """The same in the past."""
    return "was" if len(names) == 1 else "were"


def has_have(names: Collection[object]) -> str:
    """The same of another verb."""
    return "has" if len(names) == 1 else "have"


def waits_wait(names: Collection[object]) -> str:
    """The same of another verb."""
    return "waits" if len(names) == 1 else "wait"


def group_name(name: str) -> str:
    """A process group in a sentence: torch numbers those that are given no name."""
    return f"group {name}" if name.isdigit() else name


def call_name(op: str, number: int | None, group: str) -> str:
    """`all_reduce #10 of default_pg`; without the group where none is known."""
    of_group = f" of {group_name(group)}" if group else ""
    return f"{op}{'' if number is None else f' #{number}'}{of_group}"


def tensor_names(sizes: Sequence[Sequence[int]] | None, dtypes: Sequence[str] | None) -> list[str]:
    """Tensors of the flight recorder as one writes them in Python: `float32[8,2]`; the last type is that of all further sizes."""
    names = [DTYPES.get(dtype, dtype) for dtype in dtypes or ()]
    pairs = itertools.zip_longest(sizes or (), names, fillvalue=names[-1] if names else "")
    return [f"{name}[{','.join(map(str, size))}]" for size, name in pairs if not isinstance(size, str)]


def capitalized(sentence: str) -> str:
    """The sentence with its first letter in upper case, and names as they are."""
    return sentence[:1].upper() + sentence[1:]


def together(remarks: Iterable[str]) -> list[str]:
    """Each remark that several ranks share (`rank 0: ...`, `rank 1: ...`) once, in the place of the first of them."""
    ranks: dict[str, list[int]] = {}
    for remark in remarks:
        found = OF_A_RANK.fullmatch(remark)
        known = ranks.setdefault(f": {found[2]}" if found else remark, [])
        if found:
            known.append(int(found[1]))
    return [f"{these(sorted({*known}))}{said}" if known else said for said, known in ranks.items()]


# Where the time of a step goes, by the names of columns (`compute_s`) and of colours.
TIME_PARTS = {
    "compute": "compute",
    "peers": "waiting for peers",
    "input": "input",
    "saving": "saving",
    "rest": "rest",
}


def middle_left_out(text: str, most: int) -> str:
    """The text, or its two ends with ` ... ` between them: of a condition or a path the end says as much as the beginning."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half].rstrip()} ... {text[len(text) - half :].lstrip()}"

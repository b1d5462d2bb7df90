"""Attribution of a whole matrix: its cells as observations, and what came of it in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nsadiag.analysis.matrix.attribution import Attribution, Factors, Observation, Rule, attribute

Document = Mapping[str, Any]


def attributions(matrix: Document, allowed: Callable[[Factors], bool]) -> list[Document]:
    """One document a kind of failure: the attribution, its kind's class, and `words`."""
    axes = {str(a["name"]): tuple(map(str, a["values"])) for a in matrix["axes"] if a["name"] != "repeat"}
    base = {str(a["name"]): str(a["base"]) for a in matrix["axes"] if a.get("base") is not None}
    base = base if set(axes) <= set(base) else {}
    kinds: dict[str, str] = {}
    seen = observations(matrix["cells"], axes, kinds)
    found: list[Document] = []
    for attribution in attribute(axes, seen, allowed, base):
        document = {**attribution.to_json(), "class": kinds[attribution.cls]}
        found.append({**document, "words": in_words(attribution, axes, base)})
    return found


def observations(
    cells: Sequence[Document], axes: Mapping[str, Sequence[str]], kinds: dict[str, str]
) -> list[Observation]:
    """Repeats together. `kinds` is filled: what is observed to its class; the same class elsewhere is another kind."""
    groups: dict[tuple[str, ...], list[Document]] = {}
    for cell in cells:
        groups.setdefault(tuple(str(cell["factors"].get(name)) for name in axes), []).append(cell)
    found = []
    for key, repeats in groups.items():
        told = {kind for cell in repeats if (kind := _kind(cell, kinds)) is not None}
        found.append(
            Observation(
                factors=dict(zip(axes, key, strict=True)),
                ids=tuple(str(cell["id"]) for cell in repeats),
                kind=told.pop() if len(told) == 1 else None,
                flaky=len(told) > 1,
            )
        )
    return found


def _kind(cell: Document, kinds: dict[str, str]) -> str | None:
    verdict = cell.get("verdict") or {}
    outcome, cls = verdict.get("outcome"), verdict.get("class")
    if outcome in (None, "incomplete", "unknown"):
        return None
    if outcome == "healthy":
        return None if cell.get("stopped") == "timeout" else "healthy"
    # Slow by degrees: where it begins depends on the machine. What a cell costs is told by numbers instead.
    if cls == "slow_compute":
        return None
    # Not the whole signature: the parameter that is named changes with the number of layers.
    where = verdict.get("where") or {}
    kind = f"{cls}\0{str(where.get('file')).rsplit('/', 1)[-1]}\0{where.get('function')}\0{where.get('code')}"
    kinds[kind] = str(cls)
    return kind


def in_words(found: Attribution, axes: Mapping[str, Sequence[str]], base: Factors) -> str:
    """A few sentences."""
    if found.status == "no control":
        return (
            "Every cell that could be judged fails in this way or another: nothing healthy to compare with."
        )
    if found.status == "not separated":
        return (
            "No few factors tell the cells that fail from those that do not; repeat them: it may come and go."
        )
    if found.status == "confounded":
        return _confounded(found)
    rules = " or ".join(rule_in_words(rule, axes) for rule in found.rules)
    changes = [f"{name} from {' to '.join(found.changes[name])}" for name in found.factors]
    proof = f"Changing {' or '.join(changes)}, and nothing else, makes a failing cell healthy."
    return " ".join([f"It fails where {rules}.", proof, *_elsewhere(found, base)])


def _elsewhere(found: Attribution, base: Factors) -> Iterator[str]:
    """Other factors: without effect, or never varied."""
    narrow = {n: v for n, v in found.met.items() if n in found.untried and _is_narrow(v, base.get(n))}
    alike = [f"{n} {' or '.join(v)}" for n, v in found.met.items() if len(v) > 1 and n not in narrow]
    if alike:
        yield f"It fails alike with {', '.join(alike)}."
    if narrow:
        only = ", ".join(f"{n} {' or '.join(v)}" for n, v in narrow.items())
        rest = " and defaults" if base else ""
        yield f"Tested with {only}{rest} only; other settings may matter too."


def _is_narrow(met: Sequence[str], base: str | None) -> bool:
    """Whether it is worth a word that other settings were not tried: never its base, or nothing but one."""
    return len(met) == 1 if base is None else base not in met


def rule_in_words(rule: Rule, axes: Mapping[str, Sequence[str]]) -> str:
    """`binding is late and layers is 5 or more`."""
    return " and ".join(f"{name} is {_values(values, axes[name])}" for name, values in rule.items())


def _values(values: Sequence[str], every: Sequence[str]) -> str:
    try:
        numbers, all_numbers = sorted(map(float, values)), sorted(map(float, every))
    except ValueError:
        return " or ".join(values)
    if len(numbers) > 1 and numbers == all_numbers[-len(numbers) :]:
        return f"{min(values, key=float)} or more"
    if len(numbers) > 1 and numbers == all_numbers[: len(numbers)]:
        return f"{max(values, key=float)} or less"
    return " or ".join(sorted(values, key=float))


def _confounded(found: Attribution) -> str:
    shared = f"{' and '.join(found.factors)} ha{'s' if len(found.factors) == 1 else 've'} a part in it. "
    told = [" with ".join(n for n in e if n not in found.factors) for e in found.explanations[:4]]
    more = len(found.explanations) - len(told)
    return (
        f"Refused: {shared if found.factors else ''}{' or '.join(told)}{f' or {more} others' if more else ''} "
        "would explain it as well as the other, because they were never changed one at a time."
    )

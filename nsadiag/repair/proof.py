"""The proof of a repair: criteria that two rehearsals have to meet, one without the patch and one with it.

Each criterion is a function of the two records and the change. What it cannot show it does not pass.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.rehearsal.calls import BARRIER, CREATION, RECEIVE, SEND
from nsadiag.evidence.rehearsal.repair import Shown
from nsadiag.evidence.rehearsal.witnessed import Seen
from nsadiag.repair.change import Change
from nsadiag.repair.conduct import DRAWS, FUNCTIONS
from nsadiag.repair.record import RankRecord, Record, Site, site_of
from nsadiag.repair.turns import parting
from nsadiag.source.model import name_of
from nsadiag.source.syntax import parse

WITHOUT_VALUES = (BARRIER, CREATION, "monitored_barrier")
BROADCAST = "broadcast"
OF_ONE_RANK = (BROADCAST, "scatter", SEND, RECEIVE)  # whose input the others do not give
NOTHING_COMPUTED = "nothing was computed before the ranks drifted"
DRIFT_FIRST = "the ranks drift before they compute anything"
NOTHING = re.compile(r"\bNone\b")
VALUE = r"(?:None|#|[\[({].*[\])}])"  # a number, or a list, tuple or mapping
NUMBER = re.compile(r"[-+]?\b\d[\d.,:]*(?:e[-+]?\d+)?\b|\b(?:nan|inf)\b")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A patch, and the job without and with it. `alone`: the same of one rank, which can disagree with nobody."""

    change: Change
    before: Record
    after: Record
    alone: tuple[Record, Record] | None = None
    cost: str = ""  # what the patch says that it leaves out
    counted: str = ""  # how much that was in a trial that counted it


Criterion = Callable[[Trial], Shown]


def same_values(trial: Trial) -> Shown:
    """Calls, losses and parameters are those of the job without the patch, on every rank up to the first drift.

    Ranks that meet at one line in different rounds drift where they first leave a branch that the patch changes by different sides.
    """
    shown = _same_until(trial, trial.before.drift)
    parted = None if shown.met else parting(trial.before, trial.change)
    if parted is None:
        return shown
    (file, line), places = parted
    drift = trial.before.drift
    again = _same_until(trial, {rank: min(drift[rank], places.get(rank, drift[rank])) for rank in drift})
    if not again.met or again.because == DRIFT_FIRST:
        return shown
    return dataclasses.replace(again, because=f"{again.because}, where ranks part at {file}:{line}")


def _same_until(trial: Trial, drift: Mapping[int, int]) -> Shown:
    """`drift`: by rank, the number of what it computes before."""
    name, compared = "same values", 0
    for rank, before in sorted(trial.before.ranks.items()):
        after = trial.after.ranks.get(rank, RankRecord())
        wanted = [seen for seen in before.seen[: drift[rank]] if seen.what != "file"]
        found, first = aligned(wanted, after.seen, trial.change)
        if first is not None:
            what = first.op or first.what
            return Shown(
                criterion=name, met=False,
                because=f"rank {rank}: {what} at {shown(first.place)}, number {found + 1} of what it computes, differs",
            )  # fmt: skip
        compared += sum(seen.op not in WITHOUT_VALUES for seen in wanted)
    if compared:
        return Shown(
            criterion=name, met=True, because=f"{count(compared, 'value')} equal up to the first drift"
        )
    if trial.alone and trial.alone[0].answer == "agreed":
        return Shown(criterion=name, met=True, because=DRIFT_FIRST)
    return Shown(criterion=name, met=False, because=NOTHING_COMPUTED)


def aligned(wanted: Iterable[Seen], found: tuple[Seen, ...], change: Change) -> tuple[int, Seen | None]:
    """The number of those that were found in this order, and the first that was not; calls that the patch adds may come in between."""
    at = matched = 0
    for seen in wanted:
        while at < len(found) and _key(found[at]) != _key(seen) and _may_be_new(found[at], change):
            at += 1
        if at == len(found) or _key(found[at]) != _key(seen):
            return matched, seen
        at, matched = at + 1, matched + 1
    return matched, None


def _key(seen: Seen) -> tuple[str, ...]:
    return seen.what, seen.op, seen.value


def _may_be_new(seen: Seen, change: Change) -> bool:
    return seen.what == "file" or (seen.what == "call" and change.is_new(*site_of(seen.place)))


def same_alone(trial: Trial) -> Shown:
    """One rank, which can disagree with nobody, computes and writes the same with the patch, from its beginning to its end."""
    name = "same on one rank"
    if trial.alone is None or trial.alone[0].answer != "agreed":
        return Shown(criterion=name, met=True, because="does not apply: the job does not end on one rank")
    before, after = (record.ranks.get(0, RankRecord()) for record in trial.alone)
    if trial.alone[1].answer != "agreed":
        return Shown(
            criterion=name, met=False, because=f"with the patch one rank ends by {trial.alone[1].answer}"
        )
    wanted = [seen for seen in before.seen if seen.what != "file"]
    matched, first = aligned(wanted, after.seen, trial.change)
    if first is not None:
        return Shown(
            criterion=name, met=False,
            because=f"{first.op or first.what} at {shown(first.place)}, number {matched + 1}, differs",
        )  # fmt: skip
    if before.steps != after.steps:
        return Shown(criterion=name, met=False, because=f"{after.steps} steps instead of {before.steps}")
    if before.files != after.files:
        other = min(before.files ^ after.files)
        return Shown(criterion=name, met=False, because=f"only with or without the patch it writes {other}")
    return Shown(criterion=name, met=True, because=f"{count(len(wanted), 'value')} equal to the end")


def all_finite(trial: Trial) -> Shown:
    """No number is infinite or no number where it was finite without the patch."""
    for rank, after in sorted(trial.after.ranks.items()):
        before = trial.before.ranks.get(rank, RankRecord())
        known = {(seen.what, seen.op, seen.value) for seen in before.seen if seen.finite is False}
        bad = next((s for s in after.seen if s.finite is False and _key(s) not in known), None)
        if bad:
            what = bad.op or bad.what
            return Shown(
                criterion="finite",
                met=False,
                because=f"rank {rank}: {what} at {shown(bad.place)} is not finite",
            )
    return Shown(
        criterion="finite", met=True, because="all losses, inputs of calls and parameters are finite"
    )


def calls_kept(trial: Trial) -> Shown:
    """Each line that made a call still makes it, on some rank; a call of a line that the patch rewrote is made by a new line."""
    made = {(seen.op, site_of(seen.place)) for _, seen in _calls(trial.after)}
    for rank, seen in _calls(trial.before):
        file, line = site_of(seen.place)
        kept = trial.change.kept_line(file, line)
        if kept is None:
            is_made = any(op == seen.op and trial.change.is_new(*site) for op, site in made)
        else:
            is_made = (seen.op, (file, kept)) in made
        if not is_made:
            return Shown(
                criterion="calls kept", met=False,
                because=f"no rank makes the {seen.op} of {shown(seen.place)} any more, as rank {rank} did",
            )  # fmt: skip
    return Shown(criterion="calls kept", met=True, because="every line that communicated still does")


def _calls(record: Record) -> Iterable[tuple[int, Seen]]:
    return (
        (rank, seen) for rank, own in sorted(record.ranks.items()) for seen in own.seen if seen.what == "call"
    )


def files_kept(trial: Trial) -> Shown:
    """No file is written by more ranks than before, none by several that none wrote before, none is missing, and none lies apart."""
    before, after = _writers(trial.before), _writers(trial.after)
    for path in sorted(after):
        if len(after[path]) > max(len(before.get(path, ())), 1):
            who = these(sorted(after[path]))
            return Shown(criterion="files", met=False, because=f"{path} is written by {who}")
    if lost := sorted(before.keys() - after.keys()):
        return Shown(criterion="files", met=False, because=f"{lost[0]} is not written any more")
    if apart := _written_apart(trial):
        return Shown(criterion="files", met=False, because=apart)
    return Shown(
        criterion="files", met=True, because=f"{count(len(after), 'file')}, none by more ranks than before"
    )


def _written_apart(trial: Trial) -> str:
    """The first kind of file that a rank writes with the patch alone, in another kind of folder than its peers do; empty for none.

    A rank that joins a common save may have no path of its own for it: what belongs together then lies in two places.
    """
    for rank, after in sorted(trial.after.ranks.items()):
        own = _folders(trial.before.ranks.get(rank, RankRecord()))
        peers = [_folders(record) for other, record in trial.after.ranks.items() if other != rank]
        for kind, folders in sorted(_folders(after).items()):
            theirs = set().union(*(found.get(kind, set()) for found in peers))
            if kind not in own and theirs and not folders & theirs:
                return f"rank {rank} writes {kind} below {min(folders)}, and its peers below {min(theirs)}"
    return ""


def _folders(record: RankRecord) -> dict[str, set[str]]:
    """By name of a file, the folders in which the rank writes it, numbers aside."""
    found: dict[str, set[str]] = {}
    for path in record.files:
        folder, _, name = re.sub(r"\d+", "#", path).rpartition("/")
        found.setdefault(name, set()).add(folder)
    return found


def _writers(record: Record) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for rank, own in record.ranks.items():
        for path in own.files:
            found.setdefault(path, set()).add(rank)
    return found


def steps_kept(trial: Trial) -> Shown:
    """No rank makes fewer steps than without the patch, or than one rank alone, and none makes two where it made one."""
    name = "steps"
    ranks = sorted(trial.before.ranks)
    for rank in ranks:
        before, after = trial.before.ranks[rank], trial.after.ranks.get(rank, RankRecord())
        if after.steps < before.steps:
            because = f"rank {rank} makes {after.steps} steps, and made {before.steps} before the failure"
            return Shown(criterion=name, met=False, because=because)
        if most_steps_of_a_loss(after) > most_steps_of_a_loss(before) > 0:
            because = f"rank {rank} makes {most_steps_of_a_loss(after)} steps after one backward"
            return Shown(criterion=name, met=False, because=because)
    made = {own.steps for own in trial.after.ranks.values()}
    if trial.cost and not trial.counted and not any(made):
        because = f"no rank makes a step by which it could be counted that {trial.cost}"
        return Shown(criterion=name, met=False, because=because)
    if trial.alone and trial.alone[0].answer == "agreed" and not trial.cost:
        alone = trial.alone[0].ranks.get(0, RankRecord()).steps
        # Ranks that share the data make a part of the steps each.
        if max(made, default=0) * len(ranks) < alone:
            because = f"{max(made, default=0)} steps on {count(len(ranks), 'rank')}, where one rank alone makes {alone}"
            return Shown(criterion=name, met=False, because=because)
    said = f"; {trial.counted or trial.cost}" if trial.cost else ""
    return Shown(criterion=name, met=True, because=f"{_span(made)} a rank, none lost before the drift{said}")


def _span(numbers: set[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low} steps" if low == high else f"{low} to {high} steps"


def most_steps_of_a_loss(record: RankRecord) -> int:
    """The most steps of optimizers that follow one backward."""
    most = now = 0
    for seen in record.seen:
        now = now + 1 if seen.what == "step" else 0 if seen.what == "loss" else now
        most = max(most, now)
    return most


def output_kept(trial: Trial) -> Shown:
    """Every kind of line that a rank printed is still printed by it, numbers aside; where it said None it may have a value now."""
    for rank, before in sorted(trial.before.ranks.items()):
        after = {_kind(line) for line in trial.after.ranks.get(rank, RankRecord()).output}
        lost = next((line for line in before.output if not _is_printed(_kind(line), after)), None)
        if lost is not None:
            return Shown(criterion="output", met=False, because=f"rank {rank} no longer prints {lost[:80]!r}")
    then, now = _printers(trial.before), _printers(trial.after)
    more = sum(len(ranks) > max(len(then.get(kind, ())), 1) for kind, ranks in now.items())
    said = f"; {count(more, 'kind')} of line by more ranks than before the failure" if more else ""
    return Shown(criterion="output", met=True, because=f"every kind of line is still printed{said}")


def _printers(record: Record) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for rank, own in record.ranks.items():
        for kind in {_kind(line) for line in own.output}:
            found.setdefault(kind, set()).add(rank)
    return found


def _kind(line: str) -> str:
    return NUMBER.sub("#", line).strip()


def _is_printed(kind: str, after: set[str]) -> bool:
    """A value that one rank alone had before may be every rank's: `scores None` becomes `scores [#, #]`, never the reverse."""
    if kind in after or not NOTHING.search(kind):
        return kind in after
    pattern = re.compile(VALUE.join(map(re.escape, NOTHING.split(kind))))
    return any(pattern.fullmatch(other) for other in after)


def meetings_reached(trial: Trial) -> Shown:
    """Every member of a group makes each call that the patch adds, as often as the others."""
    name = "new meetings"
    made: Counter[tuple[Site, int]] = Counter()
    members: dict[Site, set[int]] = {}
    for rank, seen in _calls(trial.after):
        site = site_of(seen.place)
        if trial.change.is_new(*site):
            made[site, rank] += 1
            members.setdefault(site, set()).update(seen.members)
    for site, ranks in sorted(members.items()):
        times = {made[site, rank] for rank in ranks}
        if len(times) > 1:
            because = f"ranks make the call at {site[0]}:{site[1]} {min(times)} to {max(times)} times"
            return Shown(criterion=name, met=False, because=because)
    if unreached := sorted(_communicating(trial.change) - members.keys()):
        because = f"no rank reaches the call at {unreached[0][0]}:{unreached[0][1]}"
        return Shown(criterion=name, met=False, because=because)
    return Shown(
        criterion=name,
        met=True,
        because=f"{count(len(members), 'new line')} with calls, made by all equally often",
    )


def ranks_differ(trial: Trial) -> Shown:
    """Ranks that are given values of others still compute with data of their own, unless they did not before.

    Losses are compared at the same number on each rank; of a job without losses, the inputs of its calls.
    """
    name = "own data"
    if not any(SHARES.search(row) for row in _added_rows(trial.change)) and not _drops_rank(trial.change):
        return Shown(criterion=name, met=True, because="no rank is given what is another one's")
    what = (
        "loss"
        if any(seen.what == "loss" for own in trial.after.ranks.values() for seen in own.seen)
        else "call"
    )
    after = _alike_on_all(trial.after, what, {})
    if len(trial.after.ranks) < 2 or not after:
        return Shown(
            criterion=name,
            met=False,
            because="the ranks compute nothing that would show whose data they have",
        )
    if not _shares_draws_alone(trial.change) and (alike := _newly_alike(trial)):
        because = f"all ranks give the call at {alike} the same, and it is not known that they did before"
        return Shown(criterion=name, met=False, because=because)
    if not all(after):
        return Shown(
            criterion=name,
            met=True,
            because=f"{after.count(False)} of {count(len(after), what)} differ between ranks",
        )
    before = _alike_on_all(trial.before, what, trial.before.drift)
    if before and all(before):
        return Shown(criterion=name, met=True, because="all ranks have the same data, as before")
    return Shown(
        criterion=name,
        met=False,
        because="all ranks compute the same, and it is not known that they did before",
    )


def _shares_draws_alone(change: Change) -> bool:
    """Whether all that ranks are given of others is drawn by a generator: nobody's data, and what it decides is the same on all."""
    shared = 0
    for file in change.files:
        tree = parse(file.after)
        new = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and n.lineno in file.added]
        inside = {line for f in new for line in range(f.lineno, (f.end_lineno or 0) + 1)}
        rows = file.after.splitlines()
        if any(SHARES.search(rows[line - 1]) for line in file.added - inside):
            return False
        names = {f.name for f in new if SHARES.search(ast.unparse(f))}
        for call in [n for n in ast.walk(tree) if isinstance(n, ast.Call) and name_of(n) in names]:
            given = call.args[0] if call.args else None
            drawn = isinstance(given, ast.Call) and name_of(given) in DRAWS
            if not drawn or given.args or given.keywords:  # type: ignore[union-attr]
                return False
            shared += 1
    return shared > 0


def _newly_alike(trial: Trial) -> str:
    """The line of a call for which all ranks have one input with the patch, where they were not seen to have it before; empty for none.

    A value that is another rank's may be an object with that rank's data in it.
    """
    known = {
        (site_of(place)[0], trial.change.kept_line(*site_of(place)))
        for place, alike in _inputs(trial.before, trial.before.drift).items()
        if alike
    }
    for place, alike in sorted(_inputs(trial.after, {}).items()):
        if alike and not trial.change.is_new(*site_of(place)) and site_of(place) not in known:
            return shown(place)
    return ""


def _inputs(record: Record, drift: Mapping[int, int]) -> dict[str, bool]:
    """By place of a call that has an input of each rank's, whether all ranks had the same each time."""
    values: dict[str, list[list[str]]] = {}
    for rank, own in sorted(record.ranks.items()):
        mine: dict[str, list[str]] = {}
        for seen in own.seen[: drift.get(rank)]:
            if seen.what == "call" and seen.op not in (*WITHOUT_VALUES, *OF_ONE_RANK) and seen.value:
                mine.setdefault(seen.place, []).append(seen.value)
        for place, found in mine.items():
            values.setdefault(place, []).append(found)
    return {
        place: all(len(set(row)) == 1 for row in zip(*lists, strict=False))
        for place, lists in values.items()
        if len(lists) > 1
    }


def replicas_alike(trial: Trial) -> Shown:
    """Ranks whose parameters were the same after each step, as far as they made steps together, keep them the same to the end."""
    name = "replicas"
    before = _alike_on_all(trial.before, "step", trial.before.drift)
    after = _alike_on_all(trial.after, "step", {})
    first = before or after[:1]
    if len(trial.after.ranks) < 2 or not first or not all(first):
        return Shown(criterion=name, met=True, because="does not apply: ranks have parameters of their own")
    if not all(after):
        parted = after.index(False) + 1
        return Shown(
            criterion=name,
            met=False,
            because=f"after step {parted} the ranks' parameters differ, and did not before",
        )
    return Shown(
        criterion=name, met=True, because=f"the same on all ranks after each of {count(len(after), 'step')}"
    )


def _alike_on_all(record: Record, what: str, drift: Mapping[int, int]) -> list[bool]:
    """By number, whether all ranks have the same value; of values that all of them have."""
    values = [
        [seen.value for seen in own.seen[: drift.get(rank)] if seen.what == what and seen.op not in (*WITHOUT_VALUES, BROADCAST) and seen.value]
        for rank, own in sorted(record.ranks.items())
    ]  # fmt: skip
    return [len(set(row)) == 1 for row in zip(*values, strict=False)]


SHARES = re.compile(r"\b(?:broadcast|scatter|gather|all_gather|recv|irecv)\w*\(")
ASKS_RANK = re.compile(r"\b(?:get_)?(?:\w+_)?(?:rank|RANK|process_index)\b")


def _added_rows(change: Change) -> Iterable[str]:
    return (file.after.splitlines()[line - 1] for file in change.files for line in sorted(file.added))


def _drops_rank(change: Change) -> bool:
    """Whether the new text asks less often for the rank than the old one."""
    return any(len(ASKS_RANK.findall(f.after)) < len(ASKS_RANK.findall(f.before)) for f in change.files)


CALLED = re.compile(r"\b(?:all_reduce|broadcast|all_gather|barrier|gather|scatter|reduce|all_to_all)\w*\(")


def _communicating(change: Change) -> set[Site]:
    """New lines that name a collective; of alternatives in one function only those that could be needed are proposed."""
    return {
        (file.path, line)
        for file in change.files
        for line in file.added
        if CALLED.search(file.after.splitlines()[line - 1].partition("#")[0])
    }


def shown(place: str) -> str:
    file, line = site_of(place)
    return f"{file}:{line}" if line else "no line of the job's"


CRITERIA: tuple[Criterion, ...] = (
    same_values, same_alone, all_finite, calls_kept, files_kept, steps_kept, output_kept, meetings_reached,
    ranks_differ, replicas_alike,
)  # fmt: skip

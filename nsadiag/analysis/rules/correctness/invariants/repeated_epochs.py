"""Samplers that repeat the same order in every epoch or the same share on every rank, since epoch or rank was never set."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.operations import couples, reduced_names, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import equal, inputs_of, looks_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.correctness.duplicate_inputs import divides
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.single_call import only_call

MOST_SURE = 8  # steps with equal inputs on all ranks
AGAIN = 3  # least number of batches that are repeated in order
Epoch = tuple[int, Operation]  # with the step at which they begin


def repeated_epochs(case: Case) -> Iterator[Draft | Declined]:
    if not ran_together(case.cell):
        return
    each = {rank.rank: _epochs(case, rank) for rank in case.cell.ranks}
    yield from _same_order(case, each)
    yield from _same_share(case, each)
    yield from _overlapping_shares(case, each)
    yield from _same_batches(case)
    yield from _same_inputs(case)
    count = sum(map(len, each.values()))
    yield Declined(f"samplers of training loaders began {count} epochs, each with its own number and rank")


def _epochs(case: Case, rank: RankEvidence) -> list[Epoch]:
    """Epochs of samplers whose batches are used for training."""
    trains = _trained_at(case, rank.rank)
    found = ((row.step, o) for row in rank.observed for o in row.operations if o.kind == "epoch")
    return [(step, o) for step, o in found if o.place in trains]


def _trained_at(case: Case, rank: int) -> set[str]:
    """Lines that request batches from a loader, most of which are followed by a backward."""
    events = case.events[case.events["rank"] == rank]
    wanted = events[events.kind.isin((Kind.DATA, Kind.BACKWARD)) & (events.phase == Phase.BEGIN)]
    given: dict[str, int] = {}
    used: dict[str, int] = {}
    last = ""
    for kind, site in wanted[["kind", "site"]].itertuples(index=False):
        if kind == Kind.DATA:
            last = str(site)
            given[last] = given.get(last, 0) + 1
        elif last:
            used[last] = used.get(last, 0) + 1
            last = ""
    return {site for site, count in used.items() if 2 * count > given[site]}


def _same_order(case: Case, each: dict[int, list[Epoch]]) -> Iterator[Draft]:
    rank, epochs = next(iter(each.items()))
    for sampler in dict.fromkeys(o.sampler for _, o in epochs):
        own = [(step, o) for step, o in epochs if o.sampler == sampler and o.shuffles]
        alike = [
            (step, o)
            for (before, first), (step, o) in itertools.pairwise(own)
            if (o.epoch, o.seed) == (first.epoch, first.seed) and step > before + 1
        ]
        if not alike or len(alike) < len(own) - 1:
            continue
        (step, again) = alike[0]
        yield Draft(
            strength=Strength.STRONG,
            summary=f"{again.name} shuffles, but its epoch stays {again.epoch}: each of {len(own)} epochs repeats the order of the first. set_epoch is not called with a new number.",
            guilty_ranks=tuple(each),
            where=Where(step=step, phase="data").at(locations.of_text(again.place)),
            evidence={
                f"epochs of sampler {sampler} began at steps {', '.join(str(s) for s, _ in own[:8])}, each with epoch={again.epoch} and shuffle=True": source(
                    case, rank
                )
            },
        )


def _same_share(case: Case, each: dict[int, list[Epoch]]) -> Iterator[Draft]:
    """The same share on all ranks, if they are replicas of one model and nothing else divides the work."""
    everyone = case.cell.world_size
    wrapped = all(r.ddp and all(len(m.ranks) == everyone for m in r.ddp) for r in case.cell.ranks)
    firsts = {rank: epochs[0] for rank, epochs in each.items() if epochs}
    if not wrapped or len(firsts) < everyone or divides(case):
        return
    shares = {(o.replica, o.replicas, o.epoch) for _, o in firsts.values()}
    replica, replicas, _ = next(iter(shares))
    if len(shares) > 1 or replicas < 2:
        return
    step, first = firsts[min(firsts)]
    yield Draft(
        strength=Strength.STRONG,
        summary=f"Every rank's {first.name} takes share {replica} of {replicas}: all ranks train on the same batches, and the other shares are never read.",
        guilty_ranks=tuple(each),
        where=Where(step=step, phase="data").at(locations.of_text(first.place)),
        evidence={f"rank={replica}, num_replicas={replicas} on all {everyone} ranks": source(case)},
        fix="Leave rank and num_replicas out, or give each rank its own.",
    )


def _overlapping_shares(case: Case, each: dict[int, list[Epoch]]) -> Iterator[Draft]:
    """Shares of differently shuffled orders: what one rank takes of its order, another may take of its own."""
    everyone = case.cell.world_size
    if len(each) < everyone or len({len(found) for found in each.values()}) > 1:
        return
    rounds = [dict(zip(each, found, strict=True)) for found in zip(*each.values(), strict=True)]
    apart = [
        found
        for found in rounds
        if all(o.shuffles and o.replicas == everyone for _, o in found.values())
        and len({o.length for _, o in found.values()}) == 1
        and len({o.replica for _, o in found.values()}) == everyone
        and len({o.seed + o.epoch for _, o in found.values()}) > 1
    ]
    if not apart or len(apart) < len(rounds):
        return
    orders = {rank: (o.seed, o.epoch) for rank, (_, o) in apart[0].items()}
    step, first = apart[0][min(apart[0])]
    shown = ", ".join(f"rank {rank}: seed {s}, epoch {e}" for rank, (s, e) in list(orders.items())[:8])
    yield Draft(
        strength=Strength.STRONG,
        summary=f"Each rank's {first.name} takes its share of an order of its own ({shown}): the shares overlap, so some samples are read by several ranks and others by none.",
        guilty_ranks=outlier_ranks(orders, case.cell.weight),
        where=Where(step=step, phase="data").at(
            only_call(case.cell.code, first.name) or locations.of_text(first.place)
        ),
        evidence={
            f"orders of {len(apart)} epochs are shuffled differently on the ranks; the first: {shown}": source(
                case
            )
        },
        fix="Give the samplers of all ranks one seed, and call set_epoch with the same number on all of them.",
    )


def _same_batches(case: Case) -> Iterator[Draft]:
    """A shuffling loader whose second epoch repeats the first, by the model's inputs."""
    for rank in case.cell.ranks:
        shuffled = {loader.place for loader in rank.loaders if loader.sampler == "RandomSampler"}
        length = _first_epoch(case, rank.rank)
        given = [
            tuple(v.exact for o in row.operations if o.kind == "forward" for v in o.values)
            for number, row in enumerate(rank.observed)
            if row.step == number
        ]
        again = min(length, len(given) - length)
        if len(shuffled) != 1 or len(rank.loaders) != 1 or again < AGAIN or not all(given):
            continue
        first = given[:length]
        if len(set(first)) == length and given[length : length + again] == first[:again]:
            place = next(iter(shuffled))
            yield Draft(
                strength=Strength.LIKELY,
                summary="The loader shuffles, but epoch 2 begins with the batches of epoch 1 in the same order: its generator gets the same seed before each epoch.",
                guilty_ranks=tuple(r.rank for r in case.cell.ranks),
                where=Where(step=length, phase="data").at(locations.of_text(place)),
                evidence={
                    f"checksums of the model's inputs at steps {length} to {length + again - 1} equal those of steps 0 to {again - 1}, in this order; RandomSampler": source(
                        case, rank.rank
                    )
                },
                fix="Seed the generator once, or with the number of the epoch.",
            )
            return


def _same_inputs(case: Case) -> Iterator[Draft]:
    """Replicas that get the same batch as their peers in every step, a new one each time."""
    everyone = case.cell.world_size
    wrapped = all(r.ddp and all(len(m.ranks) == everyone for m in r.ddp) for r in case.cell.ranks)
    steps, inputs = steps_of(case), inputs_of(case)
    looks = looks_of(case)
    split = bool(looks) and any(not equal(each) for each in looks[0].held.values())
    coupled = split or any(couples(o) for step in steps for ops in step.ranks.values() for o in ops)
    if not (wrapped or reduced_names(case)) or divides(case) or coupled or len(inputs) < MOST_SURE:
        return
    alike = all(len({repr(values) for values in given.values()}) == 1 for given in inputs.values())
    if not alike or len({repr(given) for given in inputs.values()}) < MOST_SURE:
        return
    loaders = [loader.place for loader in case.cell.ranks[0].loaders]
    forward = next(iter(steps[0].of("forward").values()))[0]
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"All ranks train on the same batches: the inputs were equal on all {everyone} ranks at each of {len(inputs)} recorded steps, and change from step to step, so the same gradient is averaged {everyone} times.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=min(inputs), phase="data").at(
            locations.of_text(loaders[0] if len(loaders) == 1 else forward.place)
        ),
        evidence={
            f"checksums of the model's inputs at steps {', '.join(map(str, list(inputs)[:8]))}: equal on all ranks, to the last bit": source(
                case
            )
        },
        fix="Give the loader a DistributedSampler, or give each rank its share of the stream. If a benchmark or a test intends it, ignore this.",
    )


def _first_epoch(case: Case, rank: int) -> int:
    """The number of batches before the data was first exhausted; 0 if it was not."""
    events = case.events[(case.events["rank"] == rank) & (case.events.kind == Kind.DATA)]
    ended = events[events.phase == Phase.END].b.tolist()
    return ended.index(1) if 1 in ended else 0


RULE = Rule(
    name="repeated_epochs",
    concludes=("silently_wrong",),
    family="data",
    outcome="wrong",
    detected="A shuffling DistributedSampler has the same epoch number in all epochs of training, or the same share on all ranks of a model in DDP, or shares of orders that each rank shuffles for itself; or (`--probes light,invariants`) a shuffling loader repeats the batches of the first epoch, or replicas get the same batches as their peers in every step",
    fix="Call sampler.set_epoch(epoch) before each epoch.",
    check=repeated_epochs,
    needs=("black_boxes",),
    confused_with=("healthy",),
)

"""Samplers that repeat the same order in every epoch or the same share on every rank, since epoch or rank was never set."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.invariants.losses import averages_gradients
from nsadiag.analysis.relations.invariants.operations import Step, couples, noted, steps_of
from nsadiag.analysis.relations.invariants.tensors import copies_of, inputs_differ, inputs_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replication import has_parts, is_replicated
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.probes import chosen
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.spans import by_rank, listed
from nsadiag.source.patterns.single_call import only_call

MOST_SURE = 8  # steps with equal inputs on all ranks
APART = 1e-3  # of a loss
SEEN = 16  # steps, within which no epoch's end is likely: there a round would begin anew
AGAIN = 3  # least number of batches that are repeated in order
Epoch = tuple[int, Operation]  # with the step at which they begin


def _epochs(case: Case, rank: RankEvidence) -> list[Epoch]:
    """Epochs of samplers whose batches are used for training."""
    epochs = noted(rank, "epoch")
    trains = _trained_at(case, rank.rank) if epochs else set()
    return [(step, o) for step, o in epochs if o.place in trains]


def _trained_at(case: Case, rank: int) -> set[str]:
    """Lines that request batches from a loader, most of which are followed by a backward."""
    wanted = case.events_of(rank, Kind.DATA, Kind.BACKWARD)
    wanted = wanted[wanted.phase == Phase.BEGIN]
    given: Counter[str] = Counter()
    used: Counter[str] = Counter()
    last = ""
    for kind, site in wanted[["kind", "site"]].itertuples():
        if kind == Kind.DATA:
            last = str(site)
            given[last] += 1
        else:
            used[last] += 1
            last = ""
    return {site for site, count in used.items() if site and 2 * count > given[site]}


def _each(case: Case) -> dict[int, list[Epoch]]:
    """By rank."""
    return {rank.rank: _epochs(case, rank) for rank in case.cell.ranks}


def epoch_never_set(case: Case) -> Iterator[Draft]:
    """A sampler whose epoch stays what it was."""
    rank, epochs = next(iter(_each(case).items()))
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
        yield silent_error(
            case,
            f"{again.name} shuffles, but its epoch stays {again.epoch}: each of {len(own)} epochs repeats the order of the first. set_epoch is not called with a new number.",
            f"epochs of sampler {sampler} began at steps {listed(step for step, _ in own)}, each with epoch={again.epoch} and shuffle=True",
            again.place,
            Where(step=step, phase="data"),
            shown_by=rank,
        )


def same_share(case: Case) -> Iterator[Draft]:
    """The same share on all ranks, if they are replicas of one model and nothing else divides the work."""
    everyone = case.cell.world_size
    firsts = {rank: epochs[0] for rank, epochs in _each(case).items() if epochs}
    if not is_replicated(case.cell) or len(firsts) < everyone or has_parts(case):
        return
    shares = {(o.replica, o.replicas, o.epoch) for _, o in firsts.values()}
    replica, replicas, _ = next(iter(shares))
    if len(shares) > 1 or replicas < 2:
        return
    step, first = firsts[min(firsts)]
    yield silent_error(
        case,
        f"Every rank's {first.name} takes the same one of {replicas} shares: all ranks train on the same batches, and the other shares are never read.",
        f"rank={replica}, num_replicas={replicas} on all {everyone} ranks",
        first.place,
        Where(step=step, phase="data"),
    )


def overlapping_shares(case: Case) -> Iterator[Draft]:
    """Shares of differently shuffled orders: what one rank takes of its order, another may take of its own."""
    each = _each(case)
    if len(each) < case.cell.world_size or len(set(map(len, each.values()))) > 1:
        return
    rounds = [dict(zip(each, found, strict=True)) for found in zip(*each.values(), strict=True)]
    if not rounds or not all(_are_overlapping([o for _, o in found.values()]) for found in rounds):
        return
    orders = {rank: f"seed {o.seed}, epoch {o.epoch}" for rank, (_, o) in rounds[0].items()}
    step, first = rounds[0][min(rounds[0])]
    yield silent_error(
        case,
        f"Each rank's {first.name} shuffles the data differently and takes its share of that ({by_rank(orders)}): the shares overlap, so some samples are read by several ranks and others by none.",
        f"the samplers shuffle {count(len(rounds), 'epoch')} differently on the ranks; in the first {by_rank(orders)}",
        only_call(case.cell.code, first.name) or first.place,
        Where(step=step, phase="data"),
        ranks=outlier_ranks(orders, case.cell.weight),
    )


def shares_of_parts(case: Case) -> Iterator[Draft]:
    """Shares of data of which each rank holds another part already."""
    everyone = case.cell.world_size
    firsts = {rank: epochs[0] for rank, epochs in _each(case).items() if epochs}
    shares = {o.replica for _, o in firsts.values()}
    wholes = {o.whole for _, o in firsts.values()}
    divided = all(o.replicas == everyone for _, o in firsts.values()) and len(shares) == everyone > 1
    if not divided or 0 in wholes or len(wholes) < everyone:
        return
    step, first = firsts[min(firsts)]
    yield silent_error(
        case,
        f"Data is divided twice: each rank holds another part of it, and its {first.name} takes one share of {everyone} of that part. The other {everyone - 1} are never read.",
        f"checksums of what the samplers divide: {by_rank({rank: format(o.whole, 'x') for rank, (_, o) in firsts.items()})}; each takes {first.length} samples as share {by_rank({rank: str(o.replica) for rank, (_, o) in firsts.items()})} of {everyone}",
        only_call(case.cell.code, first.name) or first.place,
        Where(step=step, phase="data"),
        strength=Strength.LIKELY,
    )


def _are_overlapping(samplers: list[Operation]) -> bool:
    """Whether they take all shares of as many samples, which they shuffle differently."""
    everyone = len(samplers)
    return (
        all(o.shuffles and o.replicas == everyone for o in samplers)
        and len({o.length for o in samplers}) == 1
        and len({o.replica for o in samplers}) == everyone
        and len({o.seed + o.epoch for o in samplers}) > 1
    )


def batches_repeated(case: Case) -> Iterator[Draft]:
    """A shuffling loader whose second epoch repeats the first, by the model's inputs."""
    for rank in case.cell.ranks:
        shuffled = {loader.place for loader in rank.loaders if loader.sampler == "RandomSampler"}
        length = _first_epoch(case, rank.rank) if len(shuffled) == len(rank.loaders) == 1 else 0
        given = [
            tuple(v.exact for o in row.operations if o.kind == "forward" for v in o.values)
            for number, row in enumerate(rank.observed)
            if row.step == number
        ]
        again = min(length, len(given) - length)
        first = given[:length]
        if again < AGAIN or not all(given) or len(set(first)) < length:
            continue
        if given[length : length + again] == first[:again]:
            yield silent_error(
                case,
                "The loader shuffles, but epoch 2 begins with the batches of epoch 1 in the same order: its generator gets the same seed before each epoch.",
                f"checksums of the model's inputs at steps {length} to {length + again - 1} equal those of steps 0 to {again - 1}, in this order; RandomSampler",
                next(iter(shuffled)),
                Where(step=length, phase="data"),
                strength=Strength.LIKELY,
                shown_by=rank.rank,
            )
            return


def read_by_each_worker(case: Case) -> Iterator[Draft]:
    """A stream that each worker of a loader reads whole: every batch comes as often as there are workers."""
    for rank in case.cell.ranks:
        read = {(o.dataset, o.place, o.sampler, len(o.workers)) for o in rank.loaders}
        dataset, place, sampler, workers = next(iter(read)) if len(read) == 1 else ("", "", "", 0)
        if sampler is not None or workers < 2:
            continue
        given = [
            tuple(v.exact for o in row.operations if o.kind == "forward" for v in o.values)
            for number, row in enumerate(rank.observed)
            if row.step == number < SEEN
        ]
        rounds = [given[n : n + workers] for n in range(0, len(given) - workers + 1, workers)]
        alike = all(len(set(each)) == 1 and each[0] for each in rounds)
        again = len({each[0] for each in rounds}) < len(rounds)
        if len(rounds) < AGAIN or again or not alike:
            continue
        yield silent_error(
            case,
            f"Every batch comes {workers} times in a row: each of {workers} workers reads the whole stream of {dataset}, not its share.",
            f"checksums of the model's inputs at steps 0 to {len(rounds) * workers - 1}: {len(rounds)} batches, each {workers} times in a row; {workers} workers",
            place,
            Where(step=1, phase="data"),
            strength=Strength.LIKELY,
            shown_by=rank.rank,
        )
        return


def _first_epoch(case: Case, rank: int) -> int:
    """The number of batches before the data was first exhausted; 0 if it was not."""
    events = case.events_of(rank, Kind.DATA)
    ended = events[events.phase == Phase.END].b.tolist()
    return ended.index(1) if 1 in ended else 0


def same_inputs(case: Case) -> Iterator[Draft]:
    """Replicas that get the same batch as their peers in every step, a new one each time.

    Concluded where the probe was asked for: examples and benchmarks mean it, and by default it is a remark (`duplicate_inputs`).
    """
    if any(rank.meta.probes and "invariants" not in chosen(rank.meta.probes) for rank in case.cell.ranks):
        return
    everyone, steps, inputs = case.cell.world_size, steps_of(case), inputs_of(case)
    if len({repr(given) for given in inputs.values()}) < MOST_SURE or inputs_differ(case):
        return
    split = any(not copies.held for copies in copies_of(case, "step").values())
    coupled = split or any(couples(o) for step in steps for ops in step.ranks.values() for o in ops)
    if not averages_gradients(case) or has_parts(case) or coupled:
        return
    apart = _losses_differ(steps)
    drops = all(o.drops for step in steps for ops in step.of("forward").values() for o in ops)
    # Noise that is no dropout, or other targets: the work on one batch is divided otherwise.
    if apart and not drops:
        return
    loaders = [loader.place for loader in case.cell.ranks[0].loaders]
    again = "up to dropout, the same gradient is averaged" if apart else "the same gradient is averaged"
    yield silent_error(
        case,
        f"All ranks train on the same batches: the inputs were equal on all {everyone} ranks at each of {len(inputs)} recorded steps, and change from step to step, so {again} {everyone} times.",
        f"checksums of the model's inputs at steps {listed(inputs)}: equal on all ranks, to the last bit",
        loaders[0] if len(loaders) == 1 else steps[0].on_first("forward")[0].place,
        Where(step=min(inputs), phase="data"),
        strength=Strength.LIKELY,
    )


def _losses_differ(steps: tuple[Step, ...]) -> bool:
    """Whether the ranks' losses differ in every step, by more than other kernels make of one batch."""
    each = [
        {rank: [o.value for o in ops if o.value is not None] for rank, ops in step.of("backward").items()}
        for step in steps
    ]
    known = [tuple(zip(*found.values(), strict=False)) for found in each if all(found.values())]
    return bool(known) and all(
        any(max(v) - min(v) > APART * max(map(abs, v)) for v in found) for found in known
    )


def _kept(case: Case) -> Iterator[Declined]:
    yield Declined(
        "samplers of training loaders began each epoch with its own number and rank"
        if any(_each(case).values())
        else "no sampler of a training loader began an epoch"
    )


RULES = each_of(
    "data",
    {
        epoch_never_set: (
            "A shuffling DistributedSampler has the same epoch number in all epochs of training",
            "Call sampler.set_epoch(epoch) before each epoch.",
        ),
        same_share: (
            "A DistributedSampler has the same share on all ranks of a model in DDP",
            "Leave rank and num_replicas out, or give each rank its own.",
        ),
        overlapping_shares: (
            "DistributedSamplers take shares of orders that each rank shuffles for itself",
            "Give the samplers of all ranks one seed, and call set_epoch with the same number on all of them.",
        ),
        shares_of_parts: (
            "Samplers take shares of another `Subset` on each rank",
            "Divide the data once: by the sampler, over the whole of it, or by rank, without one.",
        ),
        read_by_each_worker: (
            "(on a GPU: `--probes light,invariants`) A stream whose every batch comes once from each worker of its loader",
            "Let each worker read its own share: get_worker_info() says which one it is, and of how many.",
        ),
        batches_repeated: (
            "(on a GPU: `--probes light,invariants`) A shuffling loader repeats the batches of the first epoch",
            "Seed the generator once, or with the number of the epoch.",
        ),
        same_inputs: (
            "(on a GPU: `--probes light,invariants`) Replicas get the same batches as their peers in every step",
            "Give the loader a DistributedSampler, or give each rank its share of the stream. If a benchmark or a test intends it, ignore this.",
        ),
    },
    when=lambda case: ran_together(case.cell),
    kept=_kept,
    keeps="samples",
    needs=("black_boxes",),
)

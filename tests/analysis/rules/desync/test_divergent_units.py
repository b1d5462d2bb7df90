"""Which units of FSDP each rank gathered in one forward, by the events of its black box."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.processes.warm_jobs import WarmJobs
from support.tables import case_of, table

from nsadiag.analysis.rules.desync.divergent_units import GatheredUnit, differing_units
from nsadiag.evidence.ring.blackbox import Kind, Phase

# As many layers are dropped on either rank, and all have one size: every gather meets one.
DROPS = """
    from datetime import timedelta
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.entry = nn.Linear(4, 16)
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x, drop):
            x = self.entry(x)
            for number, layer in enumerate(self.layers):
                if number == drop:
                    continue
                x = torch.relu(layer(x))
            return x

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = Stack()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        model(torch.ones(2, 4), None if step < 4 else 3 - 2 * dist.get_rank()).sum().backward()
        optimizer.step()
"""


def test_layers_that_each_rank_drops_for_itself_are_told_by_what_was_gathered(
    warm_jobs: WarmJobs, tmp_path: Path
) -> None:
    """It completes, and has computed with halves of one layer and halves of another."""
    verdict = warm_jobs.judged(DROPS, tmp_path)
    assert (verdict["class"], verdict["outcome"], verdict["guilty_ranks"]) == (
        "divergent_module_execution",
        "wrong",
        [0, 1],
    ), verdict["summary"]
    assert (verdict["where"]["code"], verdict["where"]["step"]) == ("if number == drop:", 4)


def told(*ranks: list[tuple[str, int, str]]) -> dict[int, GatheredUnit]:
    """Of ranks that gathered these units, each in a collective of that group and number; "!": what another thread issued."""
    rows, asked = [], []
    for rank, each in enumerate(ranks):
        for unit, number, group in each:
            asked.append((rank, group, number, "saver" if unit == "!" else "main"))
            if unit == "!":
                continue
            begin, end = int(Phase.BEGIN), int(Phase.END)
            if unit == "a":  # each forward begins with it
                rows.append((rank, int(Kind.FORWARD), begin, "Model", 0, number // 4, ""))
            rows.append((rank, int(Kind.UNIT), begin, f"unshard {unit}", 0, number // 4, ""))
            rows.append((rank, int(Kind.COLLECTIVE), begin, "all_gather_single", number, number // 4, group))
            rows.append((rank, int(Kind.UNIT), end, f"unshard {unit}", 0, number // 4, ""))
    columns = ["rank", "kind", "phase", "name", "a", "step", "group"]
    units = [SimpleNamespace(unit=u, ranks=tuple(range(len(ranks))), parameters=()) for u in "abc"]
    shown = [SimpleNamespace(rank=r, units=units) for r in range(len(ranks))]
    cell: Any = SimpleNamespace(ranks=shown, rank=lambda r: shown[r], weight=lambda r: 1.0)
    case = case_of(
        cell,
        events=table(rows, columns=columns),
        asked=table(asked, columns=["rank", "group", "call", "thread"]),
        groups=SimpleNamespace(label=lambda rank, name: name),
    )
    return differing_units(case)


def numbered(units: str, first: int = 1, group: str = "default_pg") -> list[tuple[str, int, str]]:
    return [(unit, first + n, group) for n, unit in enumerate(units)]


def test_the_first_collective_in_which_they_differ_counts() -> None:
    found = told(numbered("abcabbc"), *[numbered("abcabcb")] * 2)
    assert {rank: (each.number, each.unit) for rank, each in found.items()} == {
        0: (6, "b"),
        1: (6, "c"),
        2: (6, "c"),
    }


def test_what_is_not_one_collective_is_not_compared() -> None:
    assert not told(numbered("abcabc"), numbered("abcabc"))
    # One has come further; of one the ring has lost the beginning; a group of another name.
    assert not told(numbered("abcabc"), numbered("abc"))
    assert not told(numbered("abcabc"), numbered("bcabc", first=2))
    assert not told(numbered("abcabc"), numbered("abccba", group="replicate"))
    # A forward more, of which only one of two units is gathered: all that follows is shifted, and means something else.
    assert not told(numbered("abcababcabc"), numbered("abcabcabcab"))


def test_what_another_thread_issued_in_between_shifts_the_numbers_and_the_ranks_ran_the_same() -> None:
    assert not told(numbered("abca!bc"), numbered("abcabc"))
    # Before that pass it did not.
    found = told(numbered("abc!abc"), numbered("abc!acb"))
    assert found[0].number == found[1].number == 6

"""What a line of user code hangs on, and whether that can differ between ranks: read off the source alone."""

from __future__ import annotations

import textwrap

import pytest
from support.documents.sources import source_file

from nsadiag.analysis.explain.candidate import LONGEST, shown
from nsadiag.analysis.explain.candidates.first_divergence import DRAWS
from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.relations.timeline import suspects
from nsadiag.source.control import Condition, Program
from nsadiag.source.patterns.switches import entered_by, switched_by

FILE = "train.py"


def program(source: str) -> Program:
    return Program({FILE: source_file(FILE, textwrap.dedent(source))})


def line_of(source: str, marker: str) -> int:
    lines = textwrap.dedent(source).splitlines()
    return next(number for number, line in enumerate(lines, 1) if marker in line)


def around(source: str, marker: str = "# HERE") -> list[Condition]:
    return program(source).around(FILE, line_of(source, marker))


# A condition after `if`, the lines before it, and what it depends on.
PROVENANCES = {
    "the rank by name": ("", "rank == 0", "rank"),
    "a call for it": ("", "dist.get_rank() == 0", "rank"),
    "an attribute": ("", "self.trainer.is_global_zero", "rank"),
    "an attribute of the Trainer's state": ("", "state.is_world_process_zero", "rank"),
    "the Trainer's method": ("", "trainer.is_world_process_zero()", "rank"),
    "the rank in the world": ("", "world_rank == 0", "rank"),
    "the launcher's variable": ("", "os.environ['LOCAL_RANK'] == '0'", "rank"),
    "the same through getenv": ("", "int(os.getenv('RANK', 0)) == 0", "rank"),
    "behind a name": ("main = rank == 0", "main", "rank"),
    "behind two names": ("first = dist.get_rank() == 0\nquiet = not first", "not quiet", "rank"),
    "behind a helper": ("def chief():\n    return dist.get_rank() == 0", "chief()", "rank"),
    "made only on one rank": ("log = None\nif rank == 0:\n    log = Writer()", "log is not None", "rank"),
    "a list that grows on one rank": ("jobs = []\nif rank == 0:\n    jobs.append(save)", "jobs", "rank"),
    "who one is among eight": ("local = rank % 8", "local == 0", "rank"),
    "the matrix rank is no rank": ("r = torch.linalg.matrix_rank(w)", "r > 3", "data"),
    "a number that only starts from it": ("seed = 17 + rank * 3", "seed > 4", "data"),
    "the size of the world": ("", "dist.get_world_size() > 1", "uniform"),
    "a step": ("", "step % 10 == 0", "uniform"),
    "a setting": ("", "args.evaluate and step > 3", "uniform"),
    "a constant": ("LIMIT = 4", "LIMIT > 3", "uniform"),
    "a counter": ("for n, batch in enumerate(loader):\n    count = n", "count > 3", "uniform"),
    "the loss": ("loss = criterion(model(x), y)", "torch.isnan(loss)", "data"),
    "what becomes of the loss": ("best = 9.9\nbest = min(best, loss.item())", "best < 3", "data"),
    "whether data are left": ("batch = next(batches, None)", "batch is None", "input"),
    "whether a file is the program": ("", "__name__ == '__main__'", "uniform"),
    "a flag that data switch on": ("stop = False\nif loss > 3:\n    stop = True", "stop", "data"),
    "a counter that data advance": ("bad = 0\nif loss > best:\n    bad += 1", "bad >= 3", "data"),
    "a flag that steps switch on": ("last = False\nif step > 3:\n    last = True", "last", "uniform"),
    "a flag that a handler sets": (
        "class Stop:\n    def __init__(self):\n        self.asked = False\n        signal.signal(10, self.on)\n"
        "    def on(self, *_):\n        self.asked = True",
        "stop.asked",
        "data",
    ),
    "a mode that the loop sets": (
        "class M:\n    def __init__(self):\n        self.busy = False\n    def begin(self):\n        self.busy = True\nm.begin()",
        "m.busy",
        "uniform",
    ),
    "a counter of a function that is handed over": (
        "class W:\n    def __init__(self):\n        self.done = 0\n    def work(self):\n        self.done += 1\nspawn(w.work)",
        "w.done > 3",
        "uniform",
    ),
    "a score that differs by rank": (
        "def score(rank):\n    if rank == 0:\n        return 0.5\n    return 0.9\nvalue = score(rank)",
        "value > 0.7",
        "data",
    ),
    "a computed number that differs by rank": (
        "value = float(n) if rank == 0 else -float(n)",
        "value > 1",
        "data",
    ),
    "the content of a batch": ("batch = next(batches, None)", "batch.mean() > 0", "data"),
}


@pytest.mark.parametrize(("before", "test", "provenance"), PROVENANCES.values(), ids=PROVENANCES)
def test_what_a_condition_depends_on(before: str, test: str, provenance: str) -> None:
    source = f"{before}\nif {test}:\n    dist.barrier()  # HERE\n"
    (guard,) = around(source)
    assert guard.provenance == provenance


def test_a_parameter_is_what_it_is_called_with() -> None:
    source = """
        def save(model, chief):
            if chief:
                gather(model)  # HERE

        def main():
            save(model, chief=dist.get_rank() == 0)
    """
    (guard,) = around(source)
    assert (guard.provenance, guard.rank, guard.function) == ("rank", 0, "save")


def test_a_field_of_a_dataclass_is_what_it_is_made_with() -> None:
    source = """
        @dataclass
        class Saver:
            writes: bool
            def __call__(self, model):
                if self.writes:
                    gather(model)  # HERE

        saver = Saver(writes=rank == 2)
    """
    (guard,) = around(source)
    assert guard.provenance == "rank"


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ("rank == 3", 3),
        ("not rank", 0),
        ("is_main_process()", 0),
        ("trainer.is_world_process_zero()", 0),
        ("rank == world_size - 1", -1),
        ("step == 3", None),
        ("loss > 2", None),
    ],
)
def test_the_rank_that_a_condition_names(test: str, named: int | None) -> None:
    (guard,) = around(f"if {test}:\n    dist.barrier()  # HERE\n")
    assert guard.rank == named


def test_a_flag_that_all_ranks_have_agreed_on_is_the_same_everywhere() -> None:
    source = """
        def main(loss):
            bad = torch.isnan(loss).float()
            {agree}
            if bad > 0:
                dist.barrier()  # HERE
    """
    (alone,) = around(source.replace("{agree}", "pass"))
    (agreed,) = around(source.replace("{agree}", "dist.all_reduce(bad)"))
    assert (alone.provenance, agreed.provenance) == ("data", "uniform")


def test_loops_and_branches_are_told_outermost_first() -> None:
    source = """
        def main(loader):
            for batch in loader:
                if batch.bad:
                    pass
                else:
                    while waiting():
                        dist.barrier()  # HERE
    """
    assert [(g.kind, g.branch) for g in around(source)] == [
        ("for", "body"),
        ("if", "orelse"),
        ("while", "body"),
    ]


@pytest.mark.parametrize("statement", ["rank == 0 and save(model)", "save(model) if rank == 0 else None"])
def test_a_condition_within_a_statement_counts(statement: str) -> None:
    (guard,) = around(f"{statement}  # HERE\n")
    assert (guard.kind, guard.provenance, guard.rank) == ("choice", "rank", 0)


def test_early_exits_before_a_line() -> None:
    source = """
        def main(loader):
            for batch in loader:
                if rank == 1:
                    return
                if not torch.isfinite(batch).all():
                    continue
                for part in batch:
                    if part is last:
                        break
                dist.barrier()  # HERE
    """
    found = program(source).jumps_before(FILE, line_of(source, "# HERE"))
    assert [(g.leaves, g.provenance) for g in found] == [("return", "rank"), ("continue", "data")]


def test_an_end_of_data_that_is_caught_is_input() -> None:
    source = """
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                dist.barrier()  # HERE
    """
    assert [(g.kind, g.provenance) for g in around(source)] == [("while", "uniform"), ("except", "input")]


def test_a_file_that_is_not_there_hangs_on_nothing() -> None:
    assert program("x = 1").around("other.py", 1) == []
    assert program("").around(FILE, 7) == []


def test_an_iteration_that_is_over_is_new_where_it_is_but_the_beginning_of_what_was_done_before() -> None:
    known = {("backward", "reduce", "step")}
    assert suspects({0: ("backward", "reduce"), 1: ("backward",)}, known, open_ended={0}) == ((1,), True)
    # Of one that is still under way nothing is missing yet.
    assert suspects({0: ("backward", "gather"), 1: ("backward",)}, known, open_ended={0, 1}) == ((0,), True)


def test_a_choice_between_values_leads_to_no_call() -> None:
    guards = around("x = step(limit=1 if rank == 0 else 2)  # HERE")
    assert not [g for g in guards if g.kind == "choice"]


def test_a_choice_between_calls_does() -> None:
    assert [g.provenance for g in around("x = save() if rank == 0 else None  # HERE")] == ["rank"]
    assert [g.provenance for g in around("(save if rank == 0 else skip)()  # HERE")] == ["rank"]


def test_a_librarys_call_is_none_of_ones_own_function_of_that_name() -> None:
    source = "import torch\nfrom helpers import save\nclass T:\n    def save(self):\n        torch.save({}, path)\n    def fit(self):\n        self.save()\n"
    dataflow = Program(
        {FILE: source_file(FILE, source), "/job/helpers.py": source_file("/job/helpers.py", "")}
    ).dataflow
    assert [call.lineno for _, call in dataflow.calls_of("save")] == [7]
    assert ("train.py", "save") not in dataflow.of_library


def switched(source: str) -> str | None:
    """The line that decides what is given to the switch."""
    text = textwrap.dedent(source)
    number = next(n for n, each in enumerate(text.splitlines(), 1) if "set_requires_gradient_sync(" in each)
    found = switched_by(program(source), place(FILE, number, None))
    return text.splitlines()[found.line - 1].strip() if found else None


SWITCHES = {
    "given at once": ("for x in loader:\n    model.set_requires_gradient_sync(seen(x) > 9)", "model.set_requires_gradient_sync(seen(x) > 9)"),
    "behind a name": ("total = 0\nfor x in loader:\n    total += len(x)\n    last = total >= 64\n    model.set_requires_gradient_sync(last)", "last = total >= 64"),
    "through a helper that asks, and one that switches": (
        "class Window:\n    def add(self, n):\n        self.n += len(n)\n        return self.n >= LIMIT\n"
        "def sync(model, on):\n    model.set_requires_gradient_sync(requires_gradient_sync=on)\n"
        "for x in loader:\n    full = window.add(x)\n    sync(model, full)\n",
        "return self.n >= LIMIT",
    ),
    "asked the other way round": ("for x in loader:\n    early = len(x) < 9\n    model.set_requires_gradient_sync(not early)", "early = len(x) < 9"),
    "which starts from a constant": ("last = False\nfor x in loader:\n    last = len(x) > 9\n    model.set_requires_gradient_sync(last)", "last = len(x) > 9"),
    # All ranks count alike: why they are at different counts is another matter.
    "by a count": ("for step in range(9):\n    model.set_requires_gradient_sync(step % 4 == 3)", None),
    "on and off": ("model.set_requires_gradient_sync(False)", None),
    "in two ways": ("last = len(x) > 9\nif short:\n    last = len(x) > 3\nmodel.set_requires_gradient_sync(last)", None),
}  # fmt: skip


@pytest.mark.parametrize(("source", "line"), SWITCHES.values(), ids=SWITCHES.keys())
def test_the_question_whose_answer_a_switch_is_given(source: str, line: str | None) -> None:
    assert switched(source) == line


ENTERED = {
    "of two, behind a name": ("last = counted(n)\nctx = nullcontext() if last else model.no_sync()\nwith ctx:\n    go()", "ctx = nullcontext() if last else model.no_sync()"),
    "by data": ("ctx = nullcontext() if len(batch) > 9 else model.no_sync()\nwith ctx:\n    go()", "ctx = nullcontext() if len(batch) > 9 else model.no_sync()"),
    "in two branches": ("if full:\n    ctx = nullcontext()\nelse:\n    ctx = model.no_sync()\nwith ctx:\n    go()", "if full:"),
    "at once": ("with model.no_sync():\n    go()", None),
    "the same for all": ("ctx = model.no_sync()\nwith ctx:\n    go()", None),
}  # fmt: skip


@pytest.mark.parametrize(("source", "line"), ENTERED.values(), ids=ENTERED.keys())
def test_what_a_with_enters_was_chosen_before(source: str, line: str | None) -> None:
    number = next(n for n, each in enumerate(source.splitlines(), 1) if each.startswith("with "))
    found = entered_by(program(source), place(FILE, number, None))
    assert (source.splitlines()[found.line - 1] if found else None) == line


@pytest.mark.parametrize(
    ("test", "draws"),
    [
        ("self.training and random.random() < rate", True),
        ("torch.rand(()) < p", True),
        ("rng.uniform() < 0.1", True),
        ("loss.isnan()", False),
        ("brand == 'x'", False),
    ],
)
def test_a_lot_is_known_by_who_draws_it(test: str, draws: bool) -> None:
    assert bool(DRAWS.search(test)) == draws


def test_names_that_are_bound_to_one_another_many_times_are_looked_into_once() -> None:
    """A hundred bindings of each name, looked into from each that reads it, are a hundred million."""
    bound = "\n".join(f"a{number % 4} = a{(number + 1) % 4} + {number}" for number in range(400))
    source = f"a0 = rank\n{bound}\nif a0:\n    barrier()  # HERE\n"
    (condition,) = around(source)
    assert (condition.provenance, condition.rank) == ("rank", None)


def test_a_condition_is_quoted_as_it_stands_in_the_file() -> None:
    (condition,) = around('rank = dist.get_rank()\nif (mode == "train") and rank==0:\n    save()  # HERE')
    assert condition.written == '(mode == "train") and rank==0'
    assert condition.deciding == "... and rank==0"


def test_of_a_long_condition_the_terms_that_can_differ_are_shown() -> None:
    test = 'step % args.every == 0 and args.checkpoint_directory is not None and epoch < args.epochs and dist.get_rank() == 0 and mode == "train"'
    (condition,) = around(f"if {test}:\n    save()  # HERE")
    assert len(test) > LONGEST and shown(condition) == "if ... and dist.get_rank() == 0 and ..."


def test_of_a_long_term_both_ends_are_shown() -> None:
    name = "a_very_long_name" * 10
    (condition,) = around(f"if {name}.rank == 0:\n    save()  # HERE")
    assert shown(condition).startswith("if a_very_long") and shown(condition).endswith(".rank == 0")
    assert len(shown(condition)) <= LONGEST

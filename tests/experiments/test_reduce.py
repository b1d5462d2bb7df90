"""Cutting a program down: what may go together, what must not be changed by halves, and how few questions it takes."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from textwrap import dedent

import pytest
from support.promises import script_of

from nsadiag.commands.faults import scripts
from nsadiag.experiments.reduce import Reducer
from nsadiag.experiments.rewriting.danger import is_safe, zones
from nsadiag.experiments.rewriting.edits import cuts
from nsadiag.experiments.rewriting.inline import CannotInline, inlined
from nsadiag.experiments.rewriting.priors import Priors, executed
from nsadiag.experiments.rewriting.program import Program, parse, undefined
from nsadiag.experiments.rewriting.tidying import inlined_calls, inlined_values
from nsadiag.experiments.rewriting.trims import small_numbers, trims


def program(source: str, kept: str | None = None) -> Program:
    text = dedent(source).lstrip("\n")
    line = next((n for n, row in enumerate(text.splitlines(), 1) if kept and kept in row), None)
    return parse(text, wanted_line=line)


def cut(of: Program, said: str, kind: str = "delete") -> str:
    """The program without the statement that begins so."""
    for one in cuts(of):
        node = of.node(one.number)
        assert node is not None
        if one.kind == kind and ast.unparse(node).startswith(said):
            return of.applied(one.edits).text()
    raise AssertionError(f"nothing offers {kind} {said}")


@pytest.mark.parametrize("script", scripts(), ids=lambda p: p.stem)
def test_every_script_prints_as_python_that_does_the_same(script: Path) -> None:
    source = script.read_text()
    printed = parse(source).text()
    again = parse(printed)
    assert ast.unparse(again.tree) == ast.unparse(parse(source).tree)
    assert not undefined(again.tree)


def test_what_hangs_on_a_name_goes_with_it() -> None:
    before = program(
        """
        import torch
        cuda = torch.cuda.is_available()
        device = torch.device("cuda") if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        model = torch.nn.Linear(4, 4).to(device)
        batch = torch.randn(4, 4, device=device)
        print(model(batch))
        """
    )
    assert "device" not in cut(before, "device =")
    assert "torch.nn.Linear(4, 4)\n" in cut(before, "device =")
    assert 'device = torch.device("cpu")' in cut(before, "cuda =")


def test_a_statement_that_is_to_stay_is_in_nothing_that_is_offered_and_stays_as_written() -> None:
    before = program(
        """
        def save(model,  folder):
            with   open(folder)  as file:  # the one
                file.write("x")
            print(model)

        save(1, "/tmp/x")
        """,
        kept="with   open",
    )
    assert "    with   open(folder)  as file:  # the one\n" in before.text()
    for one in cuts(before):
        assert not one.gone & before.kept


def test_a_parameter_goes_from_the_function_and_from_its_calls() -> None:
    before = program(
        """
        class A:
            def step(self, batch, number=0):
                print(batch, number)
                return batch

        a = A()
        a.step(1, 2)
        a.step(3, number=4)
        """
    )
    found = next(c for c in cuts(before) if c.kind == "parameter" and c.detail == "number")
    after = before.applied(found.edits).text()
    assert "def step(self, batch):" in after
    assert "a.step(1)" in after and "a.step(3)" in after


def test_a_loop_that_spins_on_purpose_is_not_taken_for_empty() -> None:
    assert "while not flag" in program("flag = []\nwhile not flag:\n    pass\n").applied({}).text()


DANGEROUS = """
    import shutil, sys
    from pathlib import Path

    def clean(folder, name):
        target = folder / name
        if name:
            shutil.rmtree(target)

    root = Path(sys.argv[1])
    if root.name == "scratch":
        clean(root, "old")
    print("done")
"""


def test_code_that_removes_files_stays_as_it_is_or_goes_as_a_whole() -> None:
    before = program(DANGEROUS)
    guarded = zones(before)
    assert len(guarded) == 1
    offered = [*cuts(before), *trims(before), *inlined_values(before), *small_numbers(before)]
    for one in offered:
        after = before.applied(one.edits)
        if is_safe(after, guarded) and "rmtree" in after.text():
            assert after.text().startswith(before.text().partition("print(")[0].rstrip())
    assert any("rmtree" not in before.applied(c.edits).text() for c in offered)


def test_ending_oneself_endangers_nobody() -> None:
    assert zones(program("import os\nos.kill(os.getpid(), 9)\n")) == {}
    assert zones(program("import os\npid = 4711\nos.kill(pid, 9)\n"))


# -- the search -----------------------------------------------------------------------------------


class Questions:
    """Answers at once, and counts."""

    def __init__(self, is_same: Callable[[str], bool]) -> None:
        self.is_same, self.count = is_same, 0

    def ask(self, text: str) -> Future[bool]:
        self.count += 1
        answer: Future[bool] = Future()
        answer.set_result(self.is_same(text))
        return answer


def reduced(before: Program, is_same: Callable[[str], bool], at_once: int = 2) -> tuple[str, int]:
    questions = Questions(is_same)
    reducer = Reducer(best=before, ask=questions.ask, at_once=at_once, deadline=time.monotonic() + 60)
    reducer.stage(cuts, Priors(before, None).of, again=0.6)
    reducer.stage(trims, lambda *_: 0.2)
    reducer.stage(inlined_calls, lambda *_: 0.2)
    return reducer.best.text(), questions.count


def test_a_real_script_is_cut_down_in_few_questions() -> None:
    source = script_of("rank_conditional_save").read_text()
    kept = "    dist.all_gather_object(positions, position)"
    line = source.splitlines().index(kept) + 1
    needed = (
        "dist.all_gather_object(positions, position)",
        "rank == 0",
        "init_process_group",
        "save_checkpoint(",
    )
    text, count = reduced(parse(source, wanted_line=line), lambda text: all(word in text for word in needed))
    assert text.count("\n") <= 20, text
    assert count <= 40
    assert kept in text


@pytest.mark.parametrize("at_once", [1, 3])
def test_every_question_is_asked_once_and_the_answer_holds_at_the_end(at_once: int) -> None:
    source = script_of("uneven_inputs_shards").read_text()
    asked: list[str] = []

    def is_same(text: str) -> bool:
        asked.append(text)
        return "dist.barrier()" in text and "FILE_LENGTHS" in text

    text, _ = reduced(parse(source), is_same, at_once)
    assert len(asked) == len(set(asked))
    assert "dist.barrier()" in text and "FILE_LENGTHS" in text
    compile(text, "x", "exec")


def test_lines_that_never_ran_are_known_by_statement() -> None:
    before = program("def f():\n    x = 1\n    return x\n\n\ndef g():\n    return 2\n\n\nprint(f())\n")
    text = before.text()
    ran = executed(before, text, {1, 2, 3, 6, 10})
    assert ran is not None
    gone = {ast.unparse(s) for s in before.statements() if getattr(s, "number", -1) not in ran}
    assert gone == {"def g():\n    return 2", "return 2"}


# -- modules --------------------------------------------------------------------------------------


def folder_of(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return tmp_path


def test_modules_of_the_users_own_become_part_of_the_script(tmp_path: Path) -> None:
    root = folder_of(
        tmp_path,
        {
            "train.py": """
                import helper as h
                from model.net import Net
                import torch

                if __name__ == "__main__":
                    print(h.double(Net().size), torch)
            """,
            "helper.py": """
                from model import SIZE

                def double(x):
                    return 2 * x + SIZE

                if __name__ == "__main__":
                    print("not this")
            """,
            "model/__init__.py": "SIZE = 3\n",
            "model/net.py": "from . import SIZE\n\nclass Net:\n    size = SIZE\n",
        },
    )
    found, modules = inlined(root / "train.py", [root])
    text = found.text().replace("import torch\n", "").replace(", torch)", ")")
    said: list[str] = []
    exec(compile(text, "x", "exec"), {"__name__": "__main__", "print": lambda *a: said.append(str(a))})
    assert said == ["(9,)"]
    assert {m.name for m in modules} == {"helper.py", "__init__.py", "net.py"}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"train.py": "import a\nprint(a)\n", "a.py": "x = 1\n"}, "is used as a value"),
        ({"train.py": "from a import f\ndef g(): pass\nf()\n", "a.py": "def f(): pass\ndef g(): pass\n"}, "both have a g"),
    ],
)  # fmt: skip
def test_what_cannot_share_a_file_is_refused_with_the_reason(
    tmp_path: Path, files: dict[str, str], why: str
) -> None:
    root = folder_of(tmp_path, files)
    with pytest.raises(CannotInline, match=why):
        inlined(root / "train.py", [root])

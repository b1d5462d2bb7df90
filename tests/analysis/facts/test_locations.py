"""Places that events carry by number: those that `user_place` would write out."""

import pytest
from support.processes.looks import sample

from nsadiag.analysis.facts.locations import all_of_faults, in_a_step
from nsadiag.worker.place import Places, is_user_code, user_place


class Names(dict[str, int]):
    """Numbers names from one, and keeps how often it was asked."""

    asked = 0

    def number(self, name: str) -> int:
        self.asked += 1
        return self.setdefault(name, len(self) + 1)


def test_each_line_has_its_own_number_and_its_name_is_written_out_once() -> None:
    names = Names()
    places = Places(names.number)
    seen = []
    for _ in range(3):
        first, written = places.here(), user_place()
        second = places.here()
        seen.append((first, second))
        assert names["\t" + written] == first
    assert seen == [(1, 2)] * 3
    assert names.asked == 2


def test_a_caller_is_found_through_code_that_is_not_the_users() -> None:
    names = Names()
    places = Places(names.number)
    through = min([0], key=lambda _: -places.here())
    assert through == 0
    # The standard library between the user's line and the question.
    import functools

    assert functools.reduce(lambda _, __: places.here(), [0, 0]) == 2
    assert [name.rpartition(":")[2] for name in names] == ["<lambda>", "<lambda>"]


def test_code_beyond_those_that_are_kept_is_still_found() -> None:
    names = Names()
    places = Places(names.number)
    places.MOST_CODES = 0
    assert [places.here() for _ in range(2)] == [1, 1]
    assert places._known == {}


BARE = "{} (most recent call first):\n  <no Python frame>\n"
READER = 'Thread 0x00007fc97a1ff6c0 (most recent call first):\n  File "/job/reader.py", line 5 in read\n'
MAIN = '{} (most recent call first):\n  File "/job/train.py", line 9 in loss\n  File "/job/train.py", line 20 in main\n'


@pytest.mark.parametrize(
    ("threads", "lines"),
    [
        (
            [BARE.format("Thread 0x00007fa9b2ffd6c0"), READER, MAIN.format("Thread 0x00007faaa2fa4140")],
            [9, 20],
        ),
        (
            [BARE.format("Current thread 0x00007fa9b2ffd6c0"), MAIN.format("Thread 0x00007faaa2fa4140")],
            [9, 20],
        ),
        ([READER, MAIN.format("Current thread 0x00007faaa2fa4140")], [9, 20]),
        ([READER.replace("Thread", "Current thread"), MAIN.format("Thread 0x00007faaa2fa4140")], [5]),
        ([BARE.format("Thread 0x00007fa9b2ffd6c0"), READER, "..."], []),
    ],
)
def test_a_death_is_where_its_thread_was_else_where_the_main_one_was(
    threads: list[str], lines: list[int]
) -> None:
    written = "\n".join(
        ["Fatal Python error: Aborted\n", *threads, "Extension modules: numpy.core (total: 1)\n"]
    )
    assert [p.line for p in all_of_faults(written)] == lines


def test_of_two_deaths_in_a_log_the_first_is_told() -> None:
    deaths = (MAIN.format("Current thread 0x00007faaa2fa4140"), READER.replace("Thread", "Current thread"))
    written = "\n".join(f"Fatal Python error: Aborted\n\n{death}" for death in deaths)
    assert [p.line for p in all_of_faults(written)] == [9, 20]


def test_what_hangs_on_an_optimizers_step_is_not_between_steps() -> None:
    own, torchs = ["/home/ada/train.py", 59, "main"], "/lib/python3.12/site-packages/torch/optim/optimizer.py"
    assert in_a_step(sample(["/x/hooks.py", 3, "after"], [torchs, 541, "wrapper"], own))
    assert not in_a_step(sample(["/home/ada/dumps.py", 3, "write"], own))


def test_a_library_is_one_in_whatever_folder_it_was_installed() -> None:
    files = [
        "/home/ada/.local/lib/python3.11/site-packages/lightning/fit.py",
        "/usr/lib/python3/dist-packages/a.py",
    ]
    assert not any(is_user_code(compile("1", file, "exec")) for file in files)
    assert all(is_user_code(compile("1", file, "exec")) for file in ("/home/ada/train.py", "<string>"))

"""read_log as a whole: one pass, bounded memory, never an error; what it did not understand is kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from nsadiag.analysis.ingest.logs import MOST_OF_A_KIND, numbered, read_log
from nsadiag.analysis.ingest.messages.table import ROWS
from nsadiag.evidence.messages import HardwareFault, Setting, WorldSize

EXAMPLES = [line for row in ROWS for line in row.example.splitlines()]
BLOCKS = [
    "Traceback (most recent call last):", '  File "/job/train.py", line 3, in f', "    f()", "ValueError: boom", "Last error:", "[0]:",
    "  exitcode  : 1 (pid: 77)", "Thread 0x1 (most recent call first):", '{"log": "x", "rank": ', "╭─ Traceback (most recent call last) ─╮",
    "#0 f from x.py:3", "#0-0 (cf26) MISMATCH", "Original Traceback (most recent call last):", "", "\x00", "\x1b[", "[rank", "9" * 60,
]  # fmt: skip
PREFIXES = ["", "[rank3]: ", "(pid=1) ", "3: ", "[default3]:", '{"message": "']


@given(
    st.lists(
        st.builds(
            str.__add__,
            st.sampled_from(PREFIXES),
            st.one_of(st.sampled_from(EXAMPLES), st.sampled_from(BLOCKS), st.text(max_size=60)),
        ),
        max_size=60,
    )
)
def test_no_text_is_an_error(lines: list[str]) -> None:
    facts = read_log(enumerate(lines, 1))
    assert facts.lines <= len(lines)
    assert all(1 <= each.line <= len(lines) for each in (*facts.facts, *facts.raised, *facts.unread))


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_line_that_is_cut_anywhere_is_no_error(example: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(example)))
    read_log(numbered(f"{example[:at]}\n{example[at:]}"))


def test_a_long_log_is_read_in_little_memory() -> None:
    def lines(count: int) -> Iterator[tuple[int, str]]:
        for number in range(1, count + 1):
            if number % 8 == 0:
                yield (
                    number,
                    f"NVRM: Xid (PCI:0000:3b:00): 79, pid={number}, name=python, GPU has fallen off the bus.",
                )
            else:
                yield number, f"[rank{number % 512}]: step {number} loss {number / 7:.3f} {'x' * 1500}"

    tracemalloc.start()
    facts = read_log(lines(40_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert facts.lines == 40_000 and len(facts.ranks) == 448
    assert len(facts.of(HardwareFault)) == MOST_OF_A_KIND
    assert peak < 160 * 2**20


def test_a_line_like_many_before_it_is_read_within_a_block() -> None:
    quiet = "[rank3]: ValueError: boom\n" * 3
    text = quiet + (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/job/train.py", line 3, in f\n'
        "[rank3]: ValueError: boom\n"
    )
    (found,) = read_log(numbered(text)).raised
    assert (found.line, found.exception.message) == (4, "boom")


def test_errors_that_nothing_understands_are_counted_by_their_words() -> None:
    text = (
        "".join(f"[rank{n}]: shard {n} is corrupt: checksum failed\nstep {n}\n" for n in range(7))
        + "lease lost by 7\n"
    )
    unread = read_log(numbered(text)).unread
    assert [(each.count, each.line, each.text) for each in unread] == [
        (7, 1, "shard 0 is corrupt: checksum failed"), (1, 15, "lease lost by 7")
    ]  # fmt: skip


def test_at_most_ten_kinds_of_unread_lines_are_kept() -> None:
    text = "".join(f"error {chr(97 + n)} happened\n" * (n + 1) for n in range(14))
    assert [each.count for each in read_log(numbered(text)).unread] == list(range(14, 4, -1))


def test_what_is_read_is_not_among_the_unread() -> None:
    for row in ROWS:
        facts = read_log(numbered(row.example.splitlines()[0]))
        if facts.of(row.makes):
            assert facts.unread == (), row.example


def test_the_world_is_as_large_as_nodes_times_processes() -> None:
    assert read_log(numbered("torchrun --nnodes=2 --nproc-per-node 8 train.py")).world_size == 16
    assert read_log(numbered("World size: 4\ntorchrun --nproc-per-node 2 train.py")).world_size == 4
    assert read_log(numbered("step 3")).of(WorldSize) == []


def test_a_number_before_a_line_is_a_rank_where_an_error_stands_behind_one() -> None:
    counted = "0: apples\n1: pears\n"
    assert read_log(numbered(counted)).ranks == {}
    facts = read_log(
        numbered(
            counted
            + '1: Traceback (most recent call last):\n1:   File "/job/a.py", line 3, in f\n1: ValueError: x\n'
        )
    )
    assert sorted(facts.ranks) == [0, 1] and facts.raised[0].rank == 1


def test_a_pid_that_deepspeeds_launcher_names_has_the_rank_of_its_option() -> None:
    text = "[2026-11-28 10:00:00,123] [INFO] [launch.py:256:main] process 44114 spawned with command: ['python', 'train.py', '--local_rank=4']\n"
    assert read_log(numbered(text)).rank_of_pid == {44114: 4}


def test_a_setting_has_its_value() -> None:
    (found,) = read_log(numbered("export NCCL_SOCKET_IFNAME=eth0")).of(Setting)
    assert (found.name, found.value) == ("NCCL_SOCKET_IFNAME", "eth0")

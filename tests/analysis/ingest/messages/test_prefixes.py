"""Prefixes of log lines: each form, and any composition of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsadiag.analysis.ingest.messages.lines import LogLine
from nsadiag.analysis.ingest.messages.prefixes import PARTS, parsed
from nsadiag.analysis.ingest.messages.speakers import LinesOfLog, Ranks

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "rank": ("[rank3]: ", {"rank": 3}),
    "torchrun": ("[default3]:", {"local_rank": 3}),
    "mpirun": ("[1,3]<stderr>:", {"rank": 3, "stream": "stderr"}),
    "horovodrun": ("[3]<stderr>:", {"rank": 3, "stream": "stderr"}),
    "ray": ("(WorkerDict pid=17, ip=10.0.0.1) ", {"pid": 17, "host": "10.0.0.1", "worker": "WorkerDict"}),
    "raylet": ("(raylet, ip=10.0.0.4) ", {"host": "10.0.0.4", "worker": "raylet"}),
    "pod": ("[pod/train-0/pytorch] ", {"host": "train-0"}),
    "cri": ("2026-11-28T10:00:00.123456789Z stderr F ", {"stream": "stderr"}),
    "compose": ("trainer-1  | ", {"host": "trainer-1"}),
    "syslog": ("Nov 28 10:00:00 node7 torchrun[123]: ", {"host": "node7", "worker": "torchrun[123]"}),
    "dmesg": ("[12345.678901] ", {}),
    "dmesg -T": ("[Fri Nov 28 10:00:00 2026] ", {"time": "Fri Nov 28 10:00:00 2026"}),
    "pdsh": ("node7: ", {"host": "node7"}),
    "glog": ("[E1128 10:00:00.123 ProcessGroupNCCL.cpp:629] ", {"level": "error", "time": "10:00:00.123"}),
    "bare glog": ("W1129 11:57:07.249000 29471 torch/distributed/x.py:897] ", {"level": "warning", "pid": 29471}),
    "nccl": ("node7:4711:4790 [3] ", {"host": "node7", "pid": 4711, "device": 3}),
    "nemo": ("[NeMo E 2026-04-11 14:46:18 nemo_logging:393] ", {"level": "error"}),
    "loguru": ("2026-11-28 10:00:00.123 | ERROR    | mod:func:12 - ", {"level": "error"}),
    "named": ("2026-11-28 10:00:00,123 - train - ERROR - ", {"level": "error"}),
    "levelled": ("2026-11-28 10:00:00,123 ERROR ", {"level": "error"}),
    "vllm": ("ERROR 08-08 11:02:41 [core.py:936] ", {"level": "error", "time": "08-08 11:02:41"}),
    "transformers": ("[INFO|trainer.py:1779] 2026-11-28 10:00:00,123 >> ", {"level": "info"}),
    "basic": ("ERROR:root:", {"level": "error"}),
    "bracketed": ("[2026-11-28 10:00:00,123][train.py][ERROR] - ", {"level": "error"}),
    "level": ("[E] ", {"level": "error"}),
    "file": ("[launch.py:321:sigkill_handler] ", {}),
    "stamp": ("2026-11-28T10:00:00Z ", {"time": "2026-11-28T10:00:00Z"}),
    "word": ("[rank: 3] ", {"rank": 3}),
    "spelt": ("Rank 3: ", {"rank": 3}),
    "brackets": ("(rank 3) ", {"rank": 3}),
    "bar": ("r3| ", {"rank": 3}),
    "label": (" 3: ", {"rank": 3, "is_label": True}),
}  # fmt: skip
MESSAGE = {"nccl": "NCCL INFO comm 0x1", "pdsh": "[rank3]: hello"}


def told(prefix: Any) -> dict[str, Any]:
    values = {name: getattr(prefix, name) for name in ("level", "time", "stream", "device")}
    names = ("rank", "local_rank", "pid", "host", "worker", "is_label")
    return {**values, **{name: getattr(prefix.speaker, name) for name in names}}


def test_each_part_of_the_grammar_has_an_example() -> None:
    assert set(EXAMPLES) == set(PARTS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_prefix_says_what_it_says_and_leaves_the_message(name: str) -> None:
    text, values = EXAMPLES[name]
    prefix, said = parsed(text + MESSAGE.get(name, "boom, said it"))
    assert values.items() <= told(prefix).items()
    assert said.endswith(("boom, said it", "hello", "comm 0x1")) and "3: " not in said


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("[RANK-3] x", 3), ("[Rank 3/8] x", 3), ("rank=3 loss 2", 3), ("Rank 3 | x", 3), ("global_rank: 3, x", 3), ("rank3: x", 3),
        ("[1,mpirank:3,algo-1]<stderr>:x", 3), ("(VllmWorker rank=3 pid=12) x", 3), ("(Worker_TP3 pid=4) x", 3),
        ("(Worker_PP1_TP3 pid=4) x", None), ("(EngineCore_0 pid=12) x", None), ("Rank 3 is running", None), ("step 3: x", None),
        ("Epoch 3: 10%", None), ("[3/8] x", None), ("ranks 3, 4: x", None), ("3 things", None), ("[0]:", None), ("RuntimeError: x", None),
    ],
)  # fmt: skip
def test_a_rank_is_one_that_the_words_say(text: str, rank: int | None) -> None:
    assert parsed(text)[0].speaker.rank == rank


# From the outside in, as lines are collected; of one layer at most one.
LAYERS = (
    ("Nov 28 10:00:00 node7 torchrun[123]: ", "trainer-1  | ", "2026-11-28T10:00:00.1Z stdout F ", "[pod/train-0/pytorch] "),
    ("[default{rank}]:", "[1,{rank}]<stderr>:", "(WorkerDict pid=17, ip=10.0.0.1) ", "(VllmWorker rank={rank} pid=12) "),
    ("[rank{rank}]: ", "[rank{rank}]:"),
    ("[E1128 10:00:00.123 ProcessGroupNCCL.cpp:629] ", "2026-11-28 10:00:00,123 - train.loop - ERROR - ", "[2026-11-28 10:00:00,123] [ERROR] [launch.py:321:main] ",
     "ERROR 08-08 11:02:41 [core.py:936] ", "2026-11-28 10:00:00.123 | ERROR    | mod:func:12 - ", "ERROR:root:"),
    ("[Rank {rank}] ", "[rank: {rank}] ", "Rank {rank}: ", "(rank {rank}) "),
)  # fmt: skip
SAYS_RANK = "{rank}"


@given(
    parts=st.tuples(*(st.sampled_from(("", *layer)) for layer in LAYERS)),
    rank=st.integers(0, 99_999),
    said=st.sampled_from(("RuntimeError: boom", "Traceback (most recent call last):", '  File "/job/train.py", line 3, in f', "    loss.backward()")),
)  # fmt: skip
def test_any_composition_of_prefixes_gives_the_rank_and_the_message(
    parts: tuple[str, ...], rank: int, said: str
) -> None:
    text = "".join(parts).format(rank=rank)
    # An indented line behind a prefix without a blank of its own, and the other way round.
    prefix, rest = parsed(text + said)
    assert rest == said
    ranks = Ranks()
    ranks.learn(prefix.speaker)
    says = any(SAYS_RANK in part for part in parts)
    assert ranks.of(prefix.speaker) == (rank if says else None)


def lines_of(*texts: str) -> list[LogLine]:
    reader = LinesOfLog()
    return [line for number, text in enumerate(texts, 1) for line in reader.read(number, text)]


@pytest.mark.parametrize(
    "text",
    [
        '{"log":"[rank3]: boom\\n","stream":"stderr","time":"2026-11-28T10:00:00Z"}',
        '{"message": "boom", "rank": 3, "level": "ERROR"}',
        '{"msg": "boom", "extra": {"global_rank": "3"}, "severity": "error"}',
        '2026-11-28T10:00:00.1Z stderr F {"event": "boom", "rank": 3}',
        '{"log": "{\\"message\\": \\"boom\\", \\"RANK\\": 3}"}',
    ],
)
def test_a_line_of_json_is_read_for_its_message_and_rank(text: str) -> None:
    (line,) = lines_of(text)
    assert (line.said, line.speaker.rank) == ("boom", 3)


def test_a_record_that_holds_a_traceback_is_several_lines_of_one_number() -> None:
    lines = lines_of(
        '{"message": "failed", "exc_info": "Traceback (most recent call last):\\n  boom", "rank": 3}'
    )
    assert [line.said for line in lines] == ["failed", "Traceback (most recent call last):", "  boom"]
    assert {line.number for line in lines} == {1} and {line.speaker.rank for line in lines} == {3}


def test_a_document_that_is_no_record_is_left_as_it_is() -> None:
    (line,) = lines_of('{"loss": 2.0, "step": 3}')
    assert line.said == '{"loss": 2.0, "step": 3}'


def test_a_prefix_that_no_table_knows_is_learned_from_a_traceback() -> None:
    lines = lines_of(
        "<<job 7 / worker 3 @ 10:00:01>> Traceback (most recent call last):",
        '<<job 7 / worker 3 @ 10:00:02>>   File "/job/train.py", line 3, in f',
        "<<job 7 / worker 3 @ 10:00:02>> ValueError: boom",
        "<<job 7 / worker 4 @ 10:00:02>> ValueError: another",
    )
    assert [line.said for line in lines] == [
        "Traceback (most recent call last):", '  File "/job/train.py", line 3, in f', "ValueError: boom", "ValueError: another"
    ]  # fmt: skip
    assert len({line.speaker for line in lines[:3]}) == 1 and lines[3].speaker != lines[0].speaker


def test_a_process_has_the_rank_that_one_of_its_lines_says() -> None:
    ranks = Ranks()
    lines = lines_of(
        "(WorkerDict pid=17) [rank5]: hello", "(WorkerDict pid=17) boom", "(WorkerDict pid=18) boom"
    )
    for line in lines:
        ranks.learn(line.speaker)
    assert [ranks.of(line.speaker) for line in lines] == [5, 5, None]


def test_a_local_rank_is_the_rank_on_one_node_alone() -> None:
    ranks = Ranks()
    alone = parsed("[default3]:boom")[0].speaker
    assert ranks.of(alone) == 3
    ranks.learn(parsed("[default1]:[rank9]: hello")[0].speaker)
    assert ranks.of(alone) is None
    assert ranks.of(parsed("[default1]:boom")[0].speaker) == 9


def test_a_pid_of_which_two_ranks_are_said_has_none() -> None:
    ranks = Ranks()
    for rank in (1, 2):
        ranks.match(17, rank)
    assert ranks.of(parsed("(WorkerDict pid=17) boom")[0].speaker) is None

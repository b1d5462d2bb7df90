"""Names and what they say of their values: one table, each name held against every predicate."""

from __future__ import annotations

import pytest

from nsadiag.source import vocabulary

PREDICATES = (
    "is_rank", "is_rank_call", "is_rank_variable", "is_uniform", "is_config",
    "is_uniform_call", "is_end_of_data", "equalizes", "is_logger",
)  # fmt: skip
# What is true of each name; nothing else is.
NAMES = {
    "rank": "is_rank is_rank_call",
    "_rank": "is_rank is_rank_call",
    "global_rank": "is_rank is_rank_call",
    "local_rank": "is_rank is_rank_call",
    "tp_rank": "is_rank is_rank_call",
    "rank_id": "is_rank is_rank_call",
    "get_rank": "is_rank is_rank_call",
    "get_local_rank": "is_rank is_rank_call",
    "get_coordinate": "is_rank_call",
    "is_main_process": "is_rank is_rank_call",
    "main_process": "is_rank is_rank_call",
    "is_world_process_zero": "is_rank is_rank_call",
    "is_global_zero": "is_rank is_rank_call",
    "is_coordinator": "is_rank is_rank_call",
    "is_first_stage": "is_rank is_rank_call",
    "rank_zero_only": "is_rank is_rank_call",
    "ranks": "",
    "num_ranks": "is_uniform",
    "matrix_rank": "",
    "ranking": "",
    "RANK": "is_rank_variable is_uniform",
    "SLURM_PROCID": "is_rank_variable is_uniform",
    "OMPI_COMM_WORLD_LOCAL_RANK": "is_rank_variable is_uniform",
    "WORLD_SIZE": "is_uniform",
    "world_size": "is_uniform",
    "get_world_size": "is_uniform_call",
    "BATCH": "is_uniform",
    "step": "is_uniform",
    "log_every": "is_uniform",
    "num_layers": "is_uniform",
    "args": "is_config",
    "cfg": "is_config",
    "loss": "",
    "batch": "",
    "device_count": "is_uniform_call",
    "exhausted": "is_end_of_data",
    "has_more": "is_end_of_data",
    "all_reduce": "equalizes",
    "broadcast_object_list": "equalizes",
    "scatter": "",
    "logger": "is_logger",
    "wandb": "is_logger",
    "SummaryWriter": "is_logger",
    "trainer": "",
    "on_local_process": "",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_this_and_nothing_else(name: str) -> None:
    assert {each for each in PREDICATES if getattr(vocabulary, each)(name)} == set(NAMES[name].split())


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_zero_only", 0),
        ("main_process_only", 0),
        ("on_local_main_process", 0),
        ("on_last_process", -1),
        ("on_process", None),
        ("no_grad", None),
    ],
)
def test_a_decorator_admits_one_rank(name: str, rank: int | None) -> None:
    assert vocabulary.admitted_rank(name) == rank

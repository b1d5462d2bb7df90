"""Patterns of names that tell what a value is: the rank, one rank alone, the same on all ranks, the end of the data."""

from __future__ import annotations

import re

_RANK = re.compile(
    r"^_*(is_|on_|am_)?(\w+_)?(rank|ranks?_?id|rank_?zero|rank_?0|process_index|process_id)$"
    r"|^_*(is_|on_|am_)(\w+_)?(main|master|chief|leader|primary|coordinator|root|lead|zero|writer)(_\w+)?$"
    r"|^_*(main_process|master_process|main_rank|chief|leader|global_zero|rank_zero\w*|is_(first|last)(_stage)?)$"
)
_RANK_CALL = re.compile(r"^(get_)?(\w+_)?rank$|^get_(coordinate|process_index)$|^get_local_rank$")
_NOT_RANK = re.compile(r"matrix_rank|world(?!_(rank|process|main|master|zero))|num_rank|n_rank")
_RANK_VARIABLE = re.compile(r"^(\w*_)?(RANK|PROCID|NODEID|LOCALID)$")
_FIRST_RANK = re.compile(r"main|master|zero|chief|leader|primary|first")
# `rank_zero_only`, `on_main_process`, `master_only`.
_ADMITS_ONE_RANK = re.compile(
    r"^(rank_?(zero|0)(_only)?|(only_)?on_(\w+_)?(main|master|last)_(process|rank)|(\w+_)?(rank_?(zero|0)|main|master|chief|main_process|main_rank)_only)$"
)
_UNIFORM = re.compile(
    r"^[A-Z][A-Z0-9_]*$|^__(name|debug|file)__$|^(global_|micro_|train_|current_|n_)?(step|steps|epoch|epochs|iteration|iter|it|micro_step)(_idx|_num)?$"
    r"|^(max|num|total|n)_\w+$|^(world_size|world|True|False|None)$|\w+_(every|interval|freq|frequency|steps|epochs|period)$"
)
_CONFIG = re.compile(r"^(args?|cfg|config|conf|opts?|options|hparams|hp|settings|params)$")
# What a model is made of is the same on all ranks, or a class of its own tells (`model_structure_mismatch`).
_UNIFORM_CALL = re.compile(
    r"^(get_world_size|is_available|is_initialized|device_count|(named_)?(parameters|buffers|modules|children))$"
)
_END_OF_DATA = re.compile(r"exhausted|out_of_data|end_of_(data|epoch)|has_more")
# Those whose result all ranks have: not torch's `reduce`, which gives it to one, nor `reduce_scatter`, a part to each.
_EQUALIZES = re.compile(r"^(all_reduce|broadcast\w*|all_gather\w*|gather_for_metrics|agree\w*)$")
_LOGGER = re.compile(r"log(ger|ging)?s?$|writer$|^(wandb|run)$", re.IGNORECASE)

# What a call of these gives depends on its arguments alone.
TRANSPARENT = frozenset(
    {"int", "bool", "str", "float", "min", "max", "abs", "any", "all", "divmod", "round", "sum", "range"}
)
NUMERIC = frozenset({"float", "int", "item", "abs", "round", "sum", "len", "mean", "nan", "inf"})
ENDS_PROCESS = frozenset({"exit", "_exit", "quit", "abort"})
ASKS_FOR_DATA = frozenset({"next", "__next__", "has_next", "exhausted"})
# How frameworks are given a metric: LightningModule.log and log_dict, Fabric's, Accelerator's and Trainer's log.
LOGS_METRIC = ("log", "log_dict")
LOGS_ON_RANK_0 = "rank_zero_only"  # the argument with which Lightning's `log` does so
# The argument with which Lightning's `log` takes the mean over all ranks, and the class in which it does, at the epoch's end.
LOGS_MEAN, COMPUTES_MEAN = "sync_dist", "_ResultMetric"


def is_rank(name: str) -> bool:
    """Whether a value of that name depends on the rank alone: its number, or whether it is the main one."""
    return bool(_RANK.search(name)) and not _NOT_RANK.search(name)


def is_rank_call(name: str) -> bool:
    """Whether a function of that name returns such a value."""
    return bool(_RANK_CALL.search(name) or _RANK.search(name)) and not _NOT_RANK.search(name)


def is_rank_variable(name: str) -> bool:
    """Whether it is an environment variable in which launchers put the rank."""
    return bool(_RANK_VARIABLE.search(name))


def is_rank_number(name: str) -> bool:
    """Whether it is a number in any group, of which 0 is false."""
    return name.endswith("rank")


def names_first_rank(name: str) -> bool:
    """Whether a name that depends on the rank singles out the first one."""
    return bool(_FIRST_RANK.search(name))


def admitted_rank(name: str) -> int | None:
    """The one rank that a decorator of that name lets into a function, -1 for the last; None where it is no such one."""
    return None if not _ADMITS_ONE_RANK.search(name) else -1 if "last" in name else 0


def is_uniform(name: str) -> bool:
    """Whether a value of that name is the same on all ranks, if nothing else is known of it: constants, counters, sizes."""
    return bool(_UNIFORM.search(name))


def is_config(name: str) -> bool:
    """Whether it holds settings, which are the same on all ranks."""
    return bool(_CONFIG.search(name))


def is_uniform_call(name: str) -> bool:
    return bool(_UNIFORM_CALL.search(name))


def is_end_of_data(name: str) -> bool:
    """Whether it says that no data are left."""
    return bool(_END_OF_DATA.search(name))


def equalizes(name: str) -> bool:
    """Whether a call of that name leaves the same value on all ranks."""
    return bool(_EQUALIZES.search(name))


def is_logger(name: str) -> bool:
    """Whether lines of text go there, and numbers to be drawn, rather than metrics that a framework acts upon."""
    return bool(_LOGGER.search(name))

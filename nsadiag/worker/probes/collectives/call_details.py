"""Details that tell one call into torch.distributed from another: peer and tag, root, tensors, splits, members of a group."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
import torch.distributed as dist

from nsadiag.evidence.secrets.masking import mask_text

# Where each takes its peer when it is not given by name.
SENDS = {"send": 1, "isend": 1, "send_object_list": 1}
RECEIVES = {"recv": 1, "irecv": 1, "recv_object_list": 1}
TAG_POSITION = 3
ROOTS = {
    "broadcast": ("src", 1), "broadcast_object_list": ("src", 1), "reduce": ("dst", 1), "gather": ("dst", 2),
    "gather_object": ("dst", 2), "scatter": ("src", 2), "scatter_object_list": ("src", 2),
}  # fmt: skip
# The root alone gives a list as well; what all give is the first argument.
FIRST_ONLY = {"gather", "scatter"}
SPLITS = {"all_to_all_single": (("output_split_sizes", 2), ("input_split_sizes", 3))}
CREATIONS = {"new_group": 0, "new_subgroups": -1, "new_subgroups_by_enumeration": 0, "split_group": 1}
NO_GROUP = (torch.Tensor, str, int, list, torch.dtype)
# Those of which tensors alone are to be told: most of all calls.
TENSORS_ALONE = frozenset((
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_single", "all_gather_tensor", "wait_tensor",
))  # fmt: skip
MAX_DETAILS = 4096  # a tag that counts steps must not fill the table of names
MAX_OPS_SHOWN = 16
MAX_TENSORS_SHOWN = 8
MAX_SHAPES = 4096

_details: set[str] = set()
_shapes: dict[tuple[torch.dtype, tuple[int, ...]], str] = {}


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str, position: int) -> Any:
    """The argument of that name, or at that position; None if it was not given."""
    return kwargs[name] if name in kwargs else args[position] if len(args) > position >= 0 else None


def group_in(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: tuple[type, ...]) -> Any:
    """The group of a call: by name, else the first argument that is one."""
    group = kwargs.get("group")
    if group is not None:
        return group
    # Torch answers in Python whether something is a group: that is asked of nothing that plainly is none.
    return next((a for a in args if not isinstance(a, NO_GROUP) and isinstance(a, kinds)), None)


def detail_of(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """All of it as one text, "" where nothing is to be told; ranks are global ones.

    `to=1 tag=0 float32[3]`, several after "; " for a batch; `root=0 float32[8,2]`;
    `float32[6,4] float32[5,4] splits=2,4/3,2` (what is received and what is sent); `ranks=0,1` of a new group;
    `world_size=4 at=10.0.0.1:29500` of the default one.
    """
    if op in TENSORS_ALONE:
        return bounded(_tensors(args, kwargs))
    if op in SENDS or op in RECEIVES:
        detail = f"{_peer(op, args, kwargs)} {_tensors(args, kwargs)}"
    elif op == "batch_isend_irecv":
        ops = argument(args, kwargs, "p2p_op_list", 0)
        shown = "; ".join(_of_batch(each) for each in ops[:MAX_OPS_SHOWN])
        detail = shown + (f"; {len(ops) - MAX_OPS_SHOWN} more" if len(ops) > MAX_OPS_SHOWN else "")
    elif op in CREATIONS:
        detail = _members(op, args, kwargs)
    elif op == "init_process_group":
        detail = _meeting(args, kwargs)
    else:
        told = args[:1] if op in FIRST_ONLY and args else args
        named = {"tensor": kwargs.get("tensor")} if op in FIRST_ONLY else kwargs
        # What an object takes as bytes may differ between ranks.
        tensors = "" if "object" in op else _tensors(told, named)
        detail = f"{_root(op, args, kwargs)} {tensors} {_splits(op, args, kwargs)}"
    return bounded(detail.strip())


def bounded(detail: str) -> str:
    """The same, or `unknown` once there were too many to name."""
    if detail and detail not in _details:
        if len(_details) >= MAX_DETAILS:
            return "unknown"
        _details.add(detail)
    return detail


def _peer(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    direction, name, position = ("to", "dst", SENDS[op]) if op in SENDS else ("from", "src", RECEIVES[op])
    peer = argument(args, kwargs, name, position)
    in_group = kwargs.get(f"group_{name}")
    if peer is None and in_group is not None:
        peer = _global(in_group, args, kwargs)
    tag = None if op.endswith("object_list") else argument(args, kwargs, "tag", TAG_POSITION)
    return f"{direction}={'any' if peer is None else peer} tag={tag or 0}"


def _global(in_group: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    group = group_in(args, kwargs, (dist.ProcessGroup,))
    return dist.get_global_rank(group, in_group) if group is not None else in_group


def _root(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if op not in ROOTS:
        return ""
    root = argument(args, kwargs, *ROOTS[op])
    in_group = kwargs.get("group_" + ROOTS[op][0])
    if root is None and in_group is not None:
        root = _global(in_group, args, kwargs)
    return f"root={0 if root is None else root}"


def _of_batch(each: Any) -> str:
    direction = "to" if "send" in each.op.__name__ else "from"
    return f"{direction}={'any' if each.peer is None else each.peer} tag={each.tag} {_shape(each.tensor)}"


def _shape(tensor: torch.Tensor) -> str:
    key = tensor.dtype, tensor.shape
    known = _shapes.get(key)
    if known is None:
        known = f"{str(key[0]).removeprefix('torch.')}[{','.join(map(str, key[1]))}]"
        if len(_shapes) < MAX_SHAPES:
            _shapes[key] = known
    return known


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return " ".join(shown for value in (*args, *kwargs.values()) if (shown := _shown(value)))


def _shown(value: Any) -> str:
    """A tensor, or a list of them in brackets; one size alone, with how often, where all are of it."""
    if isinstance(value, torch.Tensor):
        return _shape(value)
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], torch.Tensor):
        return ""
    shapes = [_shape(tensor) for tensor in value]
    if shapes.count(shapes[0]) == len(shapes):
        return f"({len(shapes)}x{shapes[0]})"
    more = f"+{len(shapes) - MAX_TENSORS_SHOWN}" if len(shapes) > MAX_TENSORS_SHOWN else ""
    return f"({'+'.join(shapes[:MAX_TENSORS_SHOWN])}{more})"


def _splits(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if op not in SPLITS:
        return ""
    sides = [argument(args, kwargs, name, position) for name, position in SPLITS[op]]
    if not any(sides):
        return ""
    return "splits=" + "/".join(",".join(map(str, side)) if side else "even" for side in sides)


def _members(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """`ranks=0,1`, lists after "|" where one call makes several groups; `local` where its members alone need to come."""
    names = {
        "new_group": "ranks",
        "new_subgroups_by_enumeration": "ranks_per_subgroup_list",
        "split_group": "split_ranks",
    }
    ranks = argument(args, kwargs, names.get(op, ""), CREATIONS[op])
    if not ranks:
        shown = "all"
    elif isinstance(ranks[0], (list, tuple)):
        shown = "|".join(",".join(map(str, each)) for each in ranks)
    else:
        shown = ",".join(map(str, ranks))
    return f"ranks={shown}" + (" local" if kwargs.get("use_local_synchronization") else "")


def rank_and_world(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    """Rank and world size of a call of init_process_group: of its environment, its arguments, or its address."""
    url = str(argument(args, kwargs, "init_method", 1) or "")
    query = dict(parse_qsl(urlsplit(url).query))
    found = []
    for name, position in (("rank", 4), ("world_size", 3)):
        number = argument(args, kwargs, name, position)
        if number is None or number < 0:
            number = query.get(name, os.environ.get(name.upper()))
        found.append(number)
    rank, size = found
    if rank is None:
        return None
    return int(rank), int(size or 1)


def _meeting(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The world size that the rank assumes, and the address at which it goes to meet the others."""
    size = argument(args, kwargs, "world_size", 3)
    if size is None or size < 0:
        told = rank_and_world(args, kwargs)
        size = told[1] if told else os.environ.get("WORLD_SIZE", "?")
    if argument(args, kwargs, "store", 5) is not None:
        return f"world_size={size} at=store"
    url = argument(args, kwargs, "init_method", 1) or "env://"
    if url.startswith("env://"):
        url = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    return f"world_size={size} at={mask_text(url)}"

"""A process group whose calls are announced, matched and computed: it stands where the script names gloo or NCCL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.rehearsal.calls import ALL_TO_ALL, ANY_SOURCE, BARRIER, CREATION, RECEIVE, SEND
from nsadiag.worker.place import user_place
from nsadiag.worker.rehearsal.link import Link, Peers
from nsadiag.worker.rehearsal.results import FromAnybody, Result, uncompiled
from nsadiag.worker.rehearsal.values import read, reduced, shape_of

Tensors = Sequence[torch.Tensor]
# What a call comes to for this rank, from the inputs of all members in their order.
Compute = Callable[[list[list[torch.Tensor]]], Tensors]
NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


@uncompiled
class RehearsedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Its methods are those that torch calls on a group, from Python and from C++ (DDP, functional collectives)."""

    def __init__(self, link: Link, name: str, description: str, members: Sequence[int], rank: int) -> None:
        super().__init__(rank, len(members))
        self._link, self._name, self._members, self._own = link, name, list(members), rank
        self._description = description

    def meet(self, detail: str = "") -> None:
        """The creation of this group, or of one within it: returns when all members create the same."""
        self._call(CREATION, [], lambda _: [], detail=detail).wait()

    # -- one call ---------------------------------------------------------------------------------

    def _call(self, op: str, data: Tensors, compute: Callable[[Peers], Any], **about: Any) -> Any:
        tensors = about.pop("tensors", data)
        return self._link.call(
            compute, list(data), op=op, group=self._name, members=self._members,
            description=self._description,
            tensors=[[t.numel(), str(t.dtype).removeprefix("torch.")] for t in tensors],
            place=user_place(), **about,
        )  # fmt: skip

    def _meeting(
        self, op: str, inputs: Tensors, outputs: Tensors, compute: Compute, result: Any = None, **about: Any
    ) -> dist.Work:
        """A collective. Every member's inputs are as large as this rank's own, but for an all_to_all."""
        like = [shape_of(tensor) for tensor in inputs]

        def values(peers: Peers) -> Any:
            every = [read(self._link.data_of(*peer), like) for peer in peers] if like else []
            return list(compute(every))

        return Result(self._call(op, inputs, values, **about), outputs, result)

    # -- collectives ------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        name = reduction_of(opts)

        def compute(every: list[list[torch.Tensor]]) -> Tensors:
            return [reduced(values, name) for values in zip(*every, strict=True)]

        return self._meeting("all_reduce", tensors, tensors, compute, reduction=name)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        root = int(opts.rootRank) if opts else 0
        outputs = [] if root == self._own else tensors  # the root may read its own meanwhile
        return self._meeting(
            "broadcast", tensors, outputs, lambda every: every[root], list(tensors), root=root
        )

    def reduce(self, tensors: Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        name, root = reduction_of(opts), int(opts.rootRank)
        outputs = tensors if root == self._own else []

        def compute(every: list[list[torch.Tensor]]) -> Tensors:
            return [reduced(values, name) for values in zip(*every, strict=True)] if outputs else []

        return self._meeting("reduce", tensors, outputs, compute, list(tensors), reduction=name, root=root)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, *_: Any, **__: Any) -> dist.Work:
        flat = list(itertools.chain.from_iterable(outputs))
        return self._meeting("all_gather", inputs, flat, _by_tensor, list(outputs))

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, *_: Any, **__: Any
    ) -> dist.Work:
        def compute(every: list[list[torch.Tensor]]) -> Tensors:
            return [torch.cat(list(values)) for values in zip(*every, strict=True)]

        return self._meeting("all_gather", inputs, outputs, compute)

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        return self.allgather_into_tensor_coalesced([output], [input_])

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, *_: Any
    ) -> dist.Work:
        name, size = reduction_of(opts), len(self._members)

        def compute(every: list[list[torch.Tensor]]) -> Tensors:
            return [reduced(values, name).chunk(size)[self._own] for values in zip(*every, strict=True)]

        return self._meeting("reduce_scatter", inputs, outputs, compute, reduction=name)

    def _reduce_scatter_base(
        self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None, *_: Any, **__: Any
    ) -> dist.Work:
        return self.reduce_scatter_tensor_coalesced([output], [input_], opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *_: Any, **__: Any
    ) -> dist.Work:
        joined = [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs]
        return self.reduce_scatter_tensor_coalesced(outputs, joined, opts)

    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, *_: Any, **__: Any
    ) -> dist.Work:
        root = int(opts.rootRank)
        flat = list(itertools.chain.from_iterable(outputs)) if root == self._own else []
        compute: Compute = _by_tensor if flat else lambda _: []
        return self._meeting("gather", inputs, flat, compute, list(outputs or []), root=root)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *_: Any, **__: Any
    ) -> dist.Work:
        root = int(opts.rootRank)
        parts = list(itertools.chain.from_iterable(inputs)) if root == self._own else []

        like = [shape_of(outputs[0])] * len(self._members)

        def value(peers: Peers) -> Any:
            return [read(self._link.data_of(*peers[root]), like)[self._own]]

        return Result(self._call("scatter", parts, value, tensors=outputs, root=root), outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input_: torch.Tensor,
        out_sizes: Sequence[int],
        in_sizes: Sequence[int],
        *_: Any,
    ) -> dist.Work:
        size = len(self._members)
        sent = input_.split(list(in_sizes) or [input_.shape[0] // size] * size)
        received = output.split(list(out_sizes) or [output.shape[0] // size] * size)
        return self._exchange(list(received), list(sent), [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, *_: Any, **__: Any) -> dist.Work:
        return self._exchange(outputs, inputs, list(outputs))

    def _exchange(self, outputs: Tensors, inputs: Tensors, result: list[torch.Tensor]) -> dist.Work:
        sent, received = ([t.numel() for t in side] for side in (inputs, outputs))

        like = [shape_of(output) for output in outputs]

        def values(peers: Peers) -> Any:
            # A peer's parts are as large as it says: this rank's lies behind those of the members before it.
            return [
                read(self._link.part_of(rank, number, self._own, shape.element_size), [shape])[0]
                for shape, (rank, number) in zip(like, peers, strict=True)
            ]

        met = self._call(ALL_TO_ALL, inputs, values, tensors=outputs, sent=sent, received=received)
        return Result(met, outputs, result)

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        return self._meeting(BARRIER, [], [], lambda _: [])

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        self._meeting("monitored_barrier", [], [], lambda _: []).wait()

    # -- transfers --------------------------------------------------------------------------------

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        met = self._call(SEND, tensors, lambda _: [], peer=peer, tag=tag)
        return Result(met, [], list(tensors), self._own)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        like = [shape_of(tensor) for tensor in tensors]

        def values(peers: Peers) -> Any:
            return read(self._link.data_of(*peers[0]), like)

        return Result(
            self._call(RECEIVE, [], values, tensors=tensors, peer=peer, tag=tag), tensors, sender=peer
        )

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        like = [shape_of(tensor) for tensor in tensors]

        def sender_and_values(peers: Peers) -> Any:
            return [self._members.index(peers[0][0]), *read(self._link.data_of(*peers[0]), like)]

        about = {"tensors": tensors, "peer": ANY_SOURCE, "tag": tag}
        return FromAnybody(self._call(RECEIVE, [], sender_and_values, **about), tensors)

    # -- what a group has to answer besides -------------------------------------------------------

    @property
    def group_name(self) -> str:
        """By which functional collectives find it."""
        return self._name

    def getBackendName(self) -> str:
        return "nsadiag"

    def _set_sequence_number_for_group(self) -> None:
        return

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def shutdown(self) -> None:
        return

    def abort(self) -> None:
        return

    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    allgather_coalesced = allgather


def reduction_of(opts: Any) -> str:
    """The name of the reduction that a call was given."""
    given = getattr(opts, "reduceOp", None)
    return next((name for name in NAMES if given == getattr(dist.ReduceOp, name, None)), "SUM")


def _by_tensor(every: list[list[torch.Tensor]]) -> Tensors:
    """The first tensor of every member, then the second: the order of the outputs of a gather."""
    return list(itertools.chain.from_iterable(zip(*every, strict=True)))

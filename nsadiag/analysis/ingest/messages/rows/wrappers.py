"""Checks of DDP, FSDP, DeepSpeed and torch's DETAIL, which compare ranks."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import RankDisagreement, StatedError, ToolAnswer

DDP = "pytorch/pytorch torch/csrc/distributed/c10d/reducer.cpp"
FSDP = "pytorch/pytorch torch/distributed/fsdp"
DEEPSPEED = "deepspeedai/DeepSpeed deepspeed/runtime"

ROWS = (
    MessageRow(
        makes=ToolAnswer,
        fixed={"tool": "horovod", "kind": "missing"},
        mark=": [",
        pattern=r"^(?P<ranks>\d{1,7}): \[(?:allreduce|broadcast|allgather|alltoall|reducescatter|barrier)\.[\w.]",
        example="[0]<stderr>:Missing ranks:\n[0]<stderr>:3: [allreduce.layer1.weight, allreduce.layer1.bias]",
        source="horovod/horovod horovod/common/stall_inspector.cc",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "mismatch"},
        mark="appears not to match ",
        pattern=r"\[(?P<rank>\d{1,9})\]: (?P<text>params\[\d+\] in this process with (?:sizes|strides) \[[\d, ]*\] appears not to match (?:sizes|strides) of the same param in process \d+\.)",
        example="[rank2]: RuntimeError: [2]: params[0] in this process with sizes [10, 10] appears not to match sizes of the same param in process 0.",
        source=DDP,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "ddp"},
        mark="Expected to have finished reduction in the prior iteration",
        pattern=r"(?P<text>Expected to have finished reduction in the prior iteration before starting a new one\..*)",
        example="[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates "
        "that your module has parameters that were not used in producing loss.",
        source=DDP,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "ddp"},
        mark="Expected to mark a variable ready only once",
        pattern=r"(?P<text>Expected to mark a variable ready only once\..*)",
        example="[rank0]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use "
        "of a module parameter outside the `forward` function.",
        source=DDP,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "mismatch"},
        mark="Detected mismatch between collectives on ranks.",
        pattern=r"(?P<text>Detected mismatch between collectives on ranks\. Rank (?P<rank>\d{1,9}) is running .*)",
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=7, "
        "OpType=ALLGATHER, TensorShape=[1], TensorDtypes=Long, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)), but Rank 1 is "
        "running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE).",
        source="pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "fsdp"},
        mark="Forward order differs across ranks",
        pattern=r"(?P<text>Forward order differs across ranks: rank (?P<rank>\d{1,9}) .*)",
        example="[rank1]: RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 2 parameters while rank 1 is all-gathering 1 parameters",
        source=FSDP,
        versions="torch 1.12 and later, FSDP1",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "fsdp"},
        mark="FSDP",
        pattern=r"(?P<text>(?:AssertionError: )?(?:Non-root FSDP instance's|FSDP assumes .*|Expects? .*? FSDP).*)",
        example="[rank2]: AssertionError: Non-root FSDP instance's `_is_root` should not have been set yet or should have been set to `False`",
        source=FSDP,
    ),
    MessageRow(
        makes=RankDisagreement,
        mark="disagreement between rank0 and rank",
        pattern=r"disagreement between rank0 and rank(?P<unlike>\d{1,9}): rank0: (?P<at_rank_0>\[[^\]]*\]), rank\d+: (?P<here>\[[^\]]*\])",
        example="[rank6]: RuntimeError: disagreement between rank0 and rank6: rank0: [2, 3, 5], rank6: [2, 3, 7]",
        source=f"{DEEPSPEED}/zero/utils.py",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "deepspeed", "type": "AssertionError"},
        mark="param",
        pattern=r"(?P<text>(?:AssertionError: )?\{'id': \d+, 'status': '(?:NOT_AVAILABLE|INFLIGHT|AVAILABLE)'.*)",
        example="[rank0]: AssertionError: {'id': 231, 'status': 'INFLIGHT', 'numel': 4096, 'ds_numel': 4096, 'shape': (0,), 'persist': False, 'active_sub_modules': {412}, 'ds_param': 'x'}",
        source=f"{DEEPSPEED}/zero/partitioned_param_coordinator.py",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "deepspeed"},
        mark="tracing error at step ",
        pattern=r"(?P<text>tracing error at step \d+:.*)",
        example="[rank3]: RuntimeError: tracing error at step 42: module id: 12, expected 4 params, but got 5 params: ...",
        source=f"{DEEPSPEED}/zero/partitioned_param_coordinator.py",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "deepspeed"},
        mark="still have inflight params",
        pattern=r"(?P<text>still have inflight params.*)",
        example="[rank1]: RuntimeError: still have inflight params [{'id': 0, 'status': 'AVAILABLE', 'numel': 4096}]",
        source=f"{DEEPSPEED}/zero/partitioned_param_coordinator.py",
    ),
)  # fmt: skip

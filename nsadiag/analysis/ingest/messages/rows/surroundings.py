"""A job's size, versions and settings, and the answers of other tools."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import Setting, ToolAnswer, Version, WorldSize


def _version(of: str, mark: str, pattern: str, example: str, source: str) -> MessageRow:
    return MessageRow(
        makes=Version, fixed={"of": of}, mark=mark, pattern=pattern, example=example, source=source
    )


def _size(mark: str, pattern: str, example: str, source: str, of: str = "world") -> MessageRow:
    return MessageRow(
        makes=WorldSize, fixed={"of": of}, mark=mark, pattern=pattern, example=example, source=source
    )


NUMBER = r"[\s\"'=:(]{1,4}(?P<size>\d{1,6})\b"
FR_TRACE = "pytorch/pytorch torch/distributed/flight_recorder"

ROWS = (
    _size("orld", rf"\b[Ww]orld[ _]?[sS]ize\b{NUMBER}", "INFO:train:World size: 16", "logs of trainers, torch's own messages"),
    _size("WORLD", rf"\bWORLD[ _]SIZE\b{NUMBER}", "WORLD_SIZE=16", "torchrun's variables, printed by users"),
    _size("nproc", rf"nproc[-_]per[-_]node{NUMBER}", "torchrun --nproc_per_node=8 train.py", "pytorch/pytorch torch/distributed/run.py, its options", "node"),
    _size("nnodes", rf"\bnnodes{NUMBER}", "torchrun --nnodes=2 --nproc-per-node 8 train.py", "pytorch/pytorch torch/distributed/run.py, its options", "nodes"),
    _size("num_machines", rf"\bnum_machines{NUMBER}", "accelerate launch --num_machines 2 --num_processes 16 train.py", "huggingface/accelerate src/accelerate/commands/launch.py, its options", "nodes"),
    _size("num_processes", rf"\bnum_processes{NUMBER}", "Number of processes: num_processes=16", "huggingface/accelerate src/accelerate/commands/launch.py, its options"),
    _size("GLOBAL_RANK: ", r"GLOBAL_RANK: \d+, MEMBER: \d+/(?P<size>\d{1,6})", "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8", "Lightning-AI/pytorch-lightning src/lightning/fabric/utilities/distributed.py"),
    _size("distributed_backend=", r"Starting with (?P<size>\d{1,6}) processes", "distributed_backend=nccl. All distributed processes registered. Starting with 8 processes", "Lightning-AI/pytorch-lightning src/lightning/fabric/utilities/distributed.py"),
    _version("nccl", "NCCL version ", r"NCCL version (?P<version>\d+(?:\.\d+)+(?:\+cuda[\d.]+)?)", "node7:1:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.9", "NVIDIA/nccl src/init.cc"),
    _version("torch", "orch", r"(?i:\b(?:py)?torch(?: version| ?==|_version)?[ :=]+v?)(?P<version>\d+\.\d+\.\d+(?:[.+\w]*)?)", "PyTorch version: 2.6.0+cu124", "pytorch/pytorch torch/utils/collect_env.py"),
    _version("cuda", "CUDA", r"CUDA (?:Version|used to build PyTorch|runtime version): ?(?P<version>\d+\.\d+(?:\.\d+)?)", "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4  |", "nvidia-smi; torch/utils/collect_env.py"),
    _version("driver", "river", r"(?i:driver version): ?(?P<version>\d+\.\d+(?:\.\d+)?)", "Nvidia driver version: 550.54.15", "nvidia-smi; torch/utils/collect_env.py"),
    _version("deepspeed", "DeepSpeed", r"DeepSpeed info: version=(?P<version>[\w.+]+)", "[2026-11-28 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.4, git-hash=unknown", "deepspeedai/DeepSpeed deepspeed/__init__.py"),
    MessageRow(
        makes=Setting,
        mark=" set by environment to ",
        pattern=r"(?P<name>[A-Z]\w+_\w+) set by environment to (?P<value>[^\s,;]+)",
        example="node7:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0.",
        source="NVIDIA/nccl src/misc/param.cc",
    ),
    *(
        MessageRow(
            makes=Setting,
            mark=mark,
            # At the begin of a line: elsewhere it may be advice.
            pattern=r"^\s*(?:[+$>] )?(?:export |declare -x |env )?(?P<name>" + mark + r"[A-Z0-9_]+)=(?P<value>[^\s,;]+)",
            example=example,
            source="the environment of the job, as people print it",
        )
        for mark, example in (
            ("NCCL_", "export NCCL_P2P_DISABLE=1"),
            ("TORCH_", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
            ("GLOO_", "GLOO_SOCKET_IFNAME=eth0"),
            ("CUDA_", "CUDA_LAUNCH_BLOCKING=1"),
            ("PYTORCH_", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        )
    ),
    MessageRow(
        makes=ToolAnswer,
        fixed={"tool": "torchfrtrace", "kind": "not all joined"},
        mark="Not all ranks joining collective",
        pattern=r"Not all ranks joining collective",
        example="Not all ranks joining collective, sequence number: 12\ninternal record id: 34\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\n"
        "missing ranks: {3}",
        source=f"{FR_TRACE}/components/utils.py",
        versions="torch 2.5 and later",
    ),
    MessageRow(
        makes=ToolAnswer,
        fixed={"tool": "torchfrtrace", "kind": "missing"},
        mark="missing ranks: ",
        pattern=r"missing ranks: \{(?P<ranks>[\d, ]+)\}",
        example="missing ranks: {3, 5}",
        source=f"{FR_TRACE}/components/types.py",
        versions="torch 2.5 and later",
    ),
    MessageRow(
        makes=ToolAnswer,
        fixed={"tool": "torchfrtrace", "kind": "mismatch"},
        mark="Culprit rank",
        repeats=True,
        pattern=r"Culprit rank (?P<ranks>\d+)",
        example="Culprit rank 3; error in group: 0, sequence 12: collective type mismatch",
        source=f"{FR_TRACE}/components/types.py",
        versions="torch 2.5 and later",
    ),
)  # fmt: skip

"""What ranks of a rehearsal share with the process that they are forked from."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.worker.rehearsal.zygote import COMPILER, named_parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("import torch\nimport torch.distributed as dist\n", []),
        ("from torch.distributed.fsdp import fully_shard\n", ["torch.distributed.fsdp", COMPILER]),
        (
            "if True:\n    import torch.distributed.tensor.parallel\n",
            ["torch.distributed.tensor.parallel", COMPILER],
        ),
        ("from accelerate import Accelerator\n", ["torch.distributed.tensor"]),
        ("import lightning as L\n", ["torch.distributed.fsdp", COMPILER]),
        ("import accelerate, transformers\nimport transformers_js\n", ["torch.distributed.tensor"]),
        ("x = 'import torch.distributed.fsdp'\n# from torch.distributed.fsdp import fully_shard\n", []),
        ("from torch.distributed.a import b\nfrom torch.distributed.a import c\n", ["torch.distributed.a"]),
    ],
)
def test_parts_of_torch_that_a_script_imports_are_found(tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "train.py").write_text(text)
    assert named_parts(str(tmp_path / "train.py")) == parts


def test_a_module_or_a_script_that_is_not_there_names_none() -> None:
    assert named_parts("-m") == []

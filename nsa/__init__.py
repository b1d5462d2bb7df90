"""Native Sparse Attention: the operation, a layer, a model, its kernels and its trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa.attention import BranchKV, backends_used, nsa_attention
    from nsa.config import AttentionConfig, ModelConfig
    from nsa.layers.native import NativeSparseAttention
    from nsa.model import NSAModel

__version__ = "0.2.0"

# Imported on first use, so that `import nsa` is fast.
_HOMES = {
    "AttentionConfig": "nsa.config",
    "BranchKV": "nsa.attention",
    "ModelConfig": "nsa.config",
    "NSAModel": "nsa.model",
    "NativeSparseAttention": "nsa.layers.native",
    "backends_used": "nsa.attention",
    "nsa_attention": "nsa.attention",
}

__all__ = [
    "AttentionConfig",
    "BranchKV",
    "ModelConfig",
    "NSAModel",
    "NativeSparseAttention",
    "backends_used",
    "nsa_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nsa' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Native Sparse Attention in transformers: configuration, causal language model, cache; `import nsa.hf` registers them.

AutoModelForCausalLM.from_config(NSAConfig(hidden_size=256, num_attention_heads=8))
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from nsa.hf.cache import NSAPastKeyValues
from nsa.hf.configuration import NSAConfig
from nsa.hf.modeling import NSAForCausalLM

__all__ = ["NSAConfig", "NSAForCausalLM", "NSAPastKeyValues"]

AutoConfig.register("nsa", NSAConfig)
AutoModelForCausalLM.register(NSAConfig, NSAForCausalLM)

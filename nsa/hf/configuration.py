"""The configuration of `NSAForCausalLM`, under transformers' names where it has any."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import GenerationConfig, PreTrainedConfig

from nsa.config import AttentionConfig, ConfigError, ModelConfig, nearest

# Arguments that are not fields of a configuration, and are read by transformers all the same.
_OF_TRANSFORMERS = frozenset(
    (
        "attn_implementation", "auto_map", "dtype", "experts_implementation", "model_type", "name_or_path", "num_labels",
        "output_attentions", "per_layer_config", "quantization_config", "torch_dtype", "use_return_dict",
        *GenerationConfig._get_default_generation_params(),
    )
)  # fmt: skip
# What other models call it.
_INSTEAD = {
    "sliding_window": "did you mean 'window'?",
    "hidden_act": "did you mean 'mlp', which is 'gelu' or 'swiglu'?",
    "max_position_embeddings": "positions have no limit: leave it out",
}


class NSAConfig(PreTrainedConfig):
    """Sizes under transformers' names, and the fields of `AttentionConfig` under ours; lengths are tokens.

    `head_dim` is hidden_size / num_attention_heads by default and must be even, `intermediate_size` 4 hidden_size.
    `rope_theta` and `rope_parameters` of the type "default" are other names of `rope_base`. Byte 0 ends a document, and pads.
    Raises ConfigError, a ValueError, for values that are not supported, and for a key that neither we nor transformers read.
    """

    model_type = "nsa"
    attribute_map: ClassVar[dict[str, str]] = {"rope_theta": "rope_base"}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    vocab_size: int = 256
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 2
    head_dim: int | None = None
    intermediate_size: int | None = None
    mlp: str = "gelu"
    attention: str = "nsa"
    rope_base: float = 10_000.0
    compress_block: int = 32
    compress_stride: int = 16
    select_block: int = 64
    select_count: int = 16
    window: int = 512
    initial_blocks: int = 1
    local_blocks: int = 2
    compression: str = "mlp"
    branches: tuple[str, ...] | list[str] = ("compressed", "selected", "sliding")
    backend: str = "auto"
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        self._take_base(kwargs)
        known = [*self.__dataclass_fields__, *self.attribute_map]
        for key in kwargs:
            if not _is_of_transformers(key):
                raise ConfigError(
                    f"unknown key {key!r} in NSAConfig", _INSTEAD.get(key) or nearest(key, known)
                )
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        self.attention_config()
        self.model_config()
        super().__post_init__(**kwargs)

    def _take_base(self, kwargs: dict[str, Any]) -> None:
        """Set `rope_base` by its other names, which are removed from `kwargs`."""
        parameters = kwargs.pop("rope_parameters", None) or {}
        if kwargs.pop("rope_scaling", None) or parameters.keys() - {"rope_theta", "rope_type"}:
            raise ConfigError(
                f"rope_parameters is {parameters}", "positions are not scaled: give rope_theta alone"
            )
        if parameters.get("rope_type", "default") != "default":
            raise ConfigError(f"rope_type is {parameters['rope_type']!r}", "the only one is 'default'")
        default = type(self).rope_base
        for names in (kwargs, parameters):
            base = names.pop("rope_theta", self.rope_base)
            if self.rope_base not in (default, base):
                raise ConfigError(f"rope_theta is {base} and rope_base {self.rope_base}", "give one of them")
            self.rope_base = base

    def attention_config(self) -> AttentionConfig:
        """The configuration of the attention; ConfigError for values that are not supported."""
        return AttentionConfig(**{name: getattr(self, name) for name in AttentionConfig.model_fields})

    def model_config(self) -> ModelConfig:
        """The configuration of `NSAModel`; ConfigError for values that are not supported."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            layers=self.num_hidden_layers,
            dim=self.hidden_size,
            heads=self.num_attention_heads,
            kv_groups=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention=self.attention,
            mlp=self.mlp,
            mlp_hidden=self.intermediate_size,
            rope_base=self.rope_base,
        )


def _is_of_transformers(key: str) -> bool:
    return key in _OF_TRANSFORMERS or key.startswith("_")

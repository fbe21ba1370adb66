"""The architecture of a model as one frozen, validated value.

A `ModelConfig` is composed of parts (norm, activation, position kind, biases, ...) that are chosen
independently, so that GPT-2, Llama, Qwen, Gemma or Pythia are values of it and not classes. The file
holds no PyTorch: the exporter stores the config in the model file, and reading it back needs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from edgelm_runtime.errors import ConfigError

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Position = Literal["learned", "rotary"]
Init = Literal["gpt2", "pytorch"]

# Rotary tables and learned positions are made for the whole context, so a damaged figure must not pass.
LONGEST_CONTEXT = 1 << 20
_PATTERNS = ("local_layers", "rotary_layers", "convolution_layers")
RopeScalingKind = Literal["linear", "llama3", "yarn", "divisors"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched to a longer context than the model was first trained on.

    `linear` divides every frequency by `factor`. `llama3` and `yarn` divide the slow ones only, with a
    ramp between; their fields carry the names and meanings of the Hugging Face `rope_scaling` entry.
    `divisors` gives one divisor per feature pair, which is how GGUF files store Llama 3's scaling, and what LongRoPE
    is within the original context. `attention_factor` multiplies cosines and sines of yarn and divisors; None takes
    YaRN's own rule, or 1.
    """

    kind: RopeScalingKind
    factor: float
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _one_of("rope_scaling.kind", self.kind, get_args(RopeScalingKind))
        if not self.factor > 0:
            raise ConfigError(f"rope_scaling.factor is {self.factor}", "give a number above 0")
        object.__setattr__(self, "divisors", tuple(self.divisors))
        if (self.kind == "divisors") != bool(self.divisors) or not all(d > 0 for d in self.divisors):
            raise ConfigError(
                f"rope_scaling of kind {self.kind} has divisors {self.divisors[:4]}",
                "give one positive divisor per pair for kind divisors, none for others",
            )
        if self.kind in ("llama3", "yarn") and self.original_context < 1:
            raise ConfigError(
                f"rope_scaling of kind {self.kind} has original_context {self.original_context}",
                "give the context length that the model was first trained on",
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and parts of a decoder-only transformer. Lengths are in tokens, widths in features.

    Zero in `num_kv_heads`, `head_dim`, `mlp_width` or `rotary_dim` asks for the usual value, which is
    filled in at construction, so that a config always shows what is really used.

    Raises ConfigError (a ValueError) where fields contradict each other.
    """

    vocab_size: int
    context_length: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int = 0
    """Grouped-query attention: heads that keys and values have. 0: as many as `num_heads`."""
    head_dim: int = 0
    """Features per head. 0: `width / num_heads`."""
    mlp_width: int = 0
    """Features inside the MLP, or inside each expert. 0: `4 * width`."""
    num_experts: int = 0
    """MLPs of which a router chooses some for each token. 0: one MLP for all tokens."""
    experts_per_token: int = 0
    normalize_experts: bool = True
    """Whether the weights of a token's experts sum to 1; if not, they are their shares among all experts."""
    shared_mlp_width: int = 0
    """Features inside a further MLP that every token passes, next to the experts. 0: none."""

    norm: Norm = "layernorm"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    activation: Activation = "gelu_tanh"
    gated_mlp: bool = False
    qkv_bias: bool = True
    attention_bias: bool = True
    """Bias of the projection after the attention heads."""
    mlp_bias: bool = True
    head_bias: bool = False
    tied_head: bool = True

    position: Position = "learned"
    rotary_dim: int = 0
    """Leading features of each head that rotate. 0: all of them."""
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rotary_layers: tuple[bool, ...] = ()
    """Which layers rotate, repeated over the depth (SmolLM3 leaves out every fourth). Empty: all of them."""

    convolution_layers: tuple[bool, ...] = ()
    """Which layers have a short convolution in the place of attention, repeated over the depth (LFM2). Empty: none."""
    convolution_length: int = 0
    """Positions that a convolution sees, its own included."""
    convolution_bias: bool = False

    sliding_window: int = 0
    """Tokens that a local layer sees, itself included. 0: every layer sees everything."""
    local_layers: tuple[bool, ...] = ()
    """Which layers are local, repeated over the depth. Empty with a window: all of them."""
    local_rope_theta: float = 0.0
    """Rotary base of local layers, unscaled (Gemma 3). 0: the same rotation everywhere."""

    attention_scale: float = 0.0
    """Factor on query-key products. 0: `1 / sqrt(head_dim)`."""
    query_key_norm: bool = False
    query_key_norm_joint: bool = False
    """One norm over the features of all heads together, and not one for each head (OLMo 2)."""
    query_key_norm_rotated: bool = False
    """Query and key norms after the rotation and not before it (HunYuan)."""
    parallel_residual: bool = False
    pre_norm: bool = True
    """Norms before attention and MLP."""
    post_norm: bool = False
    """Norms after attention and MLP, before the residual sum (Gemma)."""
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    dropout: float = 0.0
    init: Init = "gpt2"

    def __post_init__(self) -> None:
        self._check_kinds()
        _one_of("norm", self.norm, get_args(Norm))
        _one_of("activation", self.activation, get_args(Activation))
        _one_of("position", self.position, get_args(Position))
        _one_of("init", self.init, get_args(Init))
        self._fill_in()
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}",
                "choose a divisor",
            )
        if self.position == "rotary" and (self.rotary_dim % 2 or self.rotary_dim > self.head_dim):
            raise ConfigError(
                f"rotary_dim {self.rotary_dim} does not fit head_dim {self.head_dim}",
                "give an even number up to head_dim",
            )
        divisors = self.rope_scaling.divisors if self.rope_scaling is not None else ()
        if divisors and len(divisors) != self.rotary_dim // 2:
            raise ConfigError(
                f"rope_scaling has {len(divisors)} divisors for {self.rotary_dim // 2} feature pairs",
                "give one divisor per pair",
            )
        self._check_experts()
        if any(self.convolution_layers) != bool(self.convolution_length):
            raise ConfigError(
                f"convolution_length is {self.convolution_length} and convolution_layers {self.convolution_layers}",
                "give both or none",
            )
        if not self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}", "give a number from 0 up to, not including, 1")

    def _check_kinds(self) -> None:
        """Each field by itself. The bounds are far above any model: they stop a damaged figure."""
        for name in ("vocab_size", "context_length", "width", "num_layers", "num_heads"):
            _whole(name, getattr(self, name), least=1)
        for name in (
            "num_kv_heads", "head_dim", "mlp_width", "rotary_dim", "sliding_window", "num_experts",
            "experts_per_token", "shared_mlp_width", "convolution_length",
        ):  # fmt: skip
            _whole(name, getattr(self, name), least=0)
        for name, most in (("context_length", LONGEST_CONTEXT), ("num_layers", 1 << 12), ("width", 1 << 17)):
            if getattr(self, name) > most:
                raise ConfigError(f"{name} is {getattr(self, name)}", f"give at most {most}")
        for name in ("norm_eps", "rope_theta", "embedding_scale"):
            _number(name, getattr(self, name), "above 0")
        for name in ("local_rope_theta", "attention_scale", "attention_softcap", "logit_softcap", "dropout"):
            _number(name, getattr(self, name), "of at least 0")
        for item in fields(self):
            if isinstance(item.default, bool) and not isinstance(getattr(self, item.name), bool):
                raise ConfigError(f"{item.name} is {getattr(self, item.name)!r}", "give true or false")
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, RopeScaling):
            raise ConfigError(f"rope_scaling is {self.rope_scaling!r}", "give a table with kind and factor")
        for name in _PATTERNS:
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or not all(isinstance(each, bool) for each in value):
                raise ConfigError(f"{name} is {value!r}", "give a list of true and false")

    def _check_experts(self) -> None:
        if not self.num_experts:
            if self.experts_per_token or self.shared_mlp_width:
                raise ConfigError(
                    "experts_per_token or shared_mlp_width without num_experts", "give num_experts"
                )
            return
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts_per_token is {self.experts_per_token} of {self.num_experts} experts",
                "give a number from 1 up to num_experts",
            )
        if not self.gated_mlp or self.activation != "silu" or self.mlp_bias:
            raise ConfigError(
                "experts are not gated MLPs with silu and without biases", "no other experts can be exported"
            )

    def _fill_in(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("num_kv_heads", self.num_kv_heads or self.num_heads)
        if not self.head_dim:
            if self.width % self.num_heads:
                raise ConfigError(
                    f"width {self.width} is not a multiple of num_heads {self.num_heads}",
                    "choose a divisor, or give head_dim",
                )
            put("head_dim", self.width // self.num_heads)
        put("mlp_width", self.mlp_width or 4 * self.width)
        put("attention_scale", self.attention_scale or 1 / math.sqrt(self.head_dim))
        if self.position == "rotary":
            put("rotary_dim", self.rotary_dim or self.head_dim)
        if self.sliding_window and not self.local_layers:
            put("local_layers", (True,))
        put("local_layers", tuple(bool(local) for local in self.local_layers))
        put("rotary_layers", tuple(bool(turns) for turns in self.rotary_layers))
        put("convolution_layers", tuple(bool(convolves) for convolves in self.convolution_layers))

    def is_local(self, layer: int) -> bool:
        """Whether `layer` sees only the last `sliding_window` tokens."""
        return bool(self.sliding_window and self.local_layers[layer % len(self.local_layers)])

    def convolves(self, layer: int) -> bool:
        """Whether `layer` has a convolution in the place of attention."""
        return bool(self.convolution_layers) and self.convolution_layers[layer % len(self.convolution_layers)]

    def rotates(self, layer: int) -> bool:
        """Whether queries and keys of `layer` are rotated by their positions."""
        if self.position != "rotary":
            return False
        return not self.rotary_layers or self.rotary_layers[layer % len(self.rotary_layers)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from the plain values of `to_dict`. Raises ConfigError for unknown or missing fields."""
        given = dict(values)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ConfigError(
                f"unknown model field {', '.join(unknown)}", f"known are {', '.join(sorted(known))}"
            )
        try:
            if isinstance(given.get("rope_scaling"), Mapping):
                given["rope_scaling"] = RopeScaling(**given["rope_scaling"])
            for name in _PATTERNS:
                if name in given:
                    given[name] = tuple(given[name])
            return cls(**given)
        except TypeError as error:
            raise ConfigError(f"incomplete model configuration: {error}") from error


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}", f"give a whole number of at least {least}")


def _number(name: str, value: object, bound: str) -> None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    if not plain or value < 0 or (value == 0 and bound == "above 0"):  # type: ignore[operator]
        raise ConfigError(f"{name} is {value!r}", f"give a number {bound}")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}", f"choose one of {', '.join(choices)}")

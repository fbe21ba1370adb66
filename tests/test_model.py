"""The Transformer: parts against transformers and against published formulas, and what must always hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from edgelm.config import ModelConfig, RopeScaling
from edgelm.importers.weight_names import LLM_FROM_SCRATCH, NANOGPT
from edgelm.importers.weight_rules import take_weights, without_prefixes
from edgelm.model import AttentionSpec, Stored, Transformer, causal_attention
from edgelm.model.position import rotary_table, rotate
from edgelm_runtime.errors import ConfigError
from tests.published_models import LlmFromScratch, NanoGPT
from tests.small_models import ARCHITECTURES, small_model

torch.set_num_threads(1)
LLM_FROM_SCRATCH_CONFIG = ModelConfig(
    vocab_size=70, context_length=26, width=30, num_layers=3, num_heads=5, activation="relu", qkv_bias=False,
    tied_head=False, head_bias=True, init="pytorch",
)  # fmt: skip
GPT2_CONFIG = ModelConfig(vocab_size=50257, context_length=1024, width=768, num_layers=12, num_heads=12)


def with_weights_of(reference: torch.nn.Module, family: Any, config: ModelConfig) -> Transformer:
    state = {
        name: Stored(tuple(value.shape), lambda v=value: v.detach())
        for name, value in reference.state_dict().items()
    }
    model = Transformer(config)
    weights = take_weights(family, config, without_prefixes(state, "test"), "test")
    model.load_state_dict({name: weight.read() for name, weight in weights.items()}, strict=False)
    return model


def test_the_seed_model_is_a_value_of_the_config() -> None:
    """Logits, loss and gradients of the model that this project grew out of."""
    torch.manual_seed(0)
    reference = LlmFromScratch()
    model = with_weights_of(reference, LLM_FROM_SCRATCH, LLM_FROM_SCRATCH_CONFIG)
    ids = torch.randint(0, 70, (3, 26))
    expected = reference(ids[:, :-1])
    logits, loss = model(ids[:, :-1], ids[:, 1:])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    wanted = F.cross_entropy(expected.flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    for ours, theirs in (
        (model.token_embedding.weight.grad, reference.token_embed.weight.grad),
        (model.position_embedding.weight.grad, reference.position_embed.weight.grad),
        (model.blocks[1].mlp.up.weight.grad, reference.attn_blocks[1].mlp.hidden.weight.grad),
        (
            model.blocks[0].attention.qkv.weight.grad[6:12],
            reference.attn_blocks[0].attn.heads[1].query.weight.grad,
        ),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == sum(p.numel() for p in reference.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_gpt2_is_a_value_of_the_config(bias: bool) -> None:
    arguments = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 20, "bias": bias, "vocab_size": 50}
    reference = NanoGPT(arguments)
    config = ModelConfig(
        vocab_size=50, context_length=20, width=24, num_layers=2, num_heads=3, activation="gelu", norm_bias=bias,
        qkv_bias=bias, attention_bias=bias, mlp_bias=bias,
    )  # fmt: skip
    ids = torch.randint(0, 50, (2, 20))
    torch.testing.assert_close(
        with_weights_of(reference, NANOGPT, config)(ids)[0], reference(ids), atol=1e-5, rtol=1e-5
    )


def test_sizes_and_initialisation_of_gpt2() -> None:
    with torch.device("meta"):
        whole = Transformer(GPT2_CONFIG)
    assert sum(p.numel() for p in whole.parameters()) == 124_439_808  # as published
    config = ModelConfig(vocab_size=99, context_length=16, width=256, num_layers=8, num_heads=4)
    torch.manual_seed(0)
    model = Transformer(config)
    assert model.head.weight is model.token_embedding.weight
    assert abs(float(model.blocks[3].mlp.up.weight.detach().std()) / 0.02 - 1) < 0.02
    for projection in (model.blocks[3].mlp.down, model.blocks[3].attention.out):
        assert abs(float(projection.weight.detach().std()) / (0.02 / 4) - 1) < 0.02
        assert float(projection.bias.detach().abs().max()) == 0


SCALINGS: dict[str, tuple[RopeScaling | None, dict[str, Any]]] = {
    "none": (None, {"rope_type": "default"}),
    "linear": (RopeScaling(kind="linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        RopeScaling(kind="llama3", factor=32.0, original_context=8192),
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
    ),
    "yarn": (
        RopeScaling(kind="yarn", factor=4.0, original_context=1024),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    ),
    "yarn, own figures": (
        RopeScaling(
            kind="yarn", factor=16.0, original_context=512, beta_fast=20.0, beta_slow=2.0, attention_factor=1.1
        ),
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512, "beta_fast": 20.0,
         "beta_slow": 2.0, "attention_factor": 1.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_rotary_tables_are_those_of_transformers(name: str, share: float) -> None:
    """At real sizes and all positions, where a wrong ramp shows."""
    scaling, entry = SCALINGS[name]
    theirs = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096,
        rope_parameters={**entry, "rope_theta": 500_000.0, "partial_rotary_factor": share},
    )  # fmt: skip
    if scaling is None:
        dim = int(64 * share)
        frequencies, magnitude = 1 / 500_000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim), 1.0
    else:
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[entry["rope_type"]](theirs, "cpu")
    config = ModelConfig(
        vocab_size=8, context_length=4096, width=256, num_layers=1, num_heads=4, position="rotary",
        rotary_dim=int(64 * share), rope_theta=500_000.0, rope_scaling=scaling,
    )  # fmt: skip
    cos, sin = rotary_table(config, local=False)
    angles = torch.arange(4096, dtype=torch.float64)[:, None] * frequencies.double()
    # float32 frequencies are off by 6e-8 of themselves, 4096 positions on by a few 1e-4 radians.
    torch.testing.assert_close(cos, (angles.cos() * magnitude).float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(sin, (angles.sin() * magnitude).float(), atol=1e-3, rtol=0)


def test_divisors_are_a_scaling() -> None:
    """What GGUF files store for Llama 3 gives Llama 3's table."""
    scaling = RopeScaling(kind="llama3", factor=8.0, original_context=64)
    config = ModelConfig(
        vocab_size=8,
        context_length=512,
        width=64,
        num_layers=1,
        num_heads=2,
        position="rotary",
        rope_scaling=scaling,
    )
    plain = ModelConfig.from_dict({**config.to_dict(), "rope_scaling": None})
    one, scaled = (rotary_table(c, local=False)[1][1].double().asin() for c in (plain, config))
    divisors = RopeScaling(kind="divisors", factor=1.0, divisors=tuple((one / scaled).tolist()))
    again = ModelConfig.from_dict(
        {
            **config.to_dict(),
            "rope_scaling": {"kind": "divisors", "factor": 1.0, "divisors": divisors.divisors},
        }
    )
    torch.testing.assert_close(rotary_table(again, False), rotary_table(config, False), atol=2e-4, rtol=0)


def test_rotation_depends_on_distance_alone() -> None:
    config = ModelConfig(
        vocab_size=8, context_length=64, width=48, num_layers=1, num_heads=2, position="rotary", rotary_dim=16
    )
    cos, sin = rotary_table(config, local=False)
    query, key = torch.randn(24), torch.randn(24)
    turned = [rotate(x.expand(1, 1, 64, 24), cos, sin)[0, 0] for x in (query, key)]
    products = turned[0] @ turned[1].T
    for offset in (0, 5, 40):
        diagonal = products.diagonal(-offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(products[0, 0], query @ key)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_agrees_with_transformers(window: int, softcap: float, kv_heads: int) -> None:
    query, key, value = (
        torch.randn(2, 4, 9, 6),
        torch.randn(2, kv_heads, 9, 6),
        torch.randn(2, kv_heads, 9, 6),
    )
    distance = torch.arange(9)[:, None] - torch.arange(9)
    seen = (distance >= 0) & ((distance < window) if window else True)
    mask = torch.zeros(9, 9).masked_fill(~seen, -torch.inf)
    module = torch.nn.Module()
    module.num_key_value_groups = 4 // kv_heads
    expected, _ = eager_attention_forward(
        module, query, key, value, mask, scaling=0.7, softcap=softcap or None
    )
    got = causal_attention(
        query, key, value, AttentionSpec(layer=0, scale=0.7, window=window, softcap=softcap)
    )
    torch.testing.assert_close(got.transpose(1, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_holds_for_every_architecture(name: str) -> None:
    model = small_model(name).eval()
    config = model.config
    length = config.context_length
    ids = torch.randint(0, config.vocab_size, (2, length))
    with torch.no_grad():
        logits = model(ids)[0]
        # The future has no influence.
        changed = ids.clone()
        changed[:, length // 2 :] = (changed[:, length // 2 :] + 1) % config.vocab_size
        torch.testing.assert_close(model(changed)[0][:, : length // 2], logits[:, : length // 2])
        # Explicit positions, embeddings and hidden states are the same computation.
        positions = torch.arange(length).expand(2, -1)
        hidden = model.from_embeddings(model.embed(ids, positions), positions)
        torch.testing.assert_close(model.logits(hidden), logits, atol=1e-5, rtol=1e-5)
        # Rows of a batch do not see each other, shorter rows are prefixes.
        torch.testing.assert_close(
            model(ids[1:, : max(1, length - 3)])[0][0], logits[1, : max(1, length - 3)], atol=1e-5, rtol=1e-5
        )
    stored = {key: value.shape for key, value in model.state_dict().items()}
    parameters = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    assert set(stored) == parameters, "only parameters are stored: no masks, positions or rotary tables"


def test_targets_of_minus_100_do_not_count() -> None:
    model = small_model("gpt2").eval()
    ids = torch.randint(0, 61, (2, 12))
    targets = ids.roll(-1, 1)
    targets[0, 5:] = -100
    logits, loss = model(ids, targets)
    rows = torch.cat([logits[0, :5], logits[1]])
    torch.testing.assert_close(loss, F.cross_entropy(rows, torch.cat([targets[0, :5], targets[1]])))


@pytest.mark.parametrize("name", ["gpt2", "windows"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    plain = small_model(name, dropout=0.0).train()
    saving = copy.deepcopy(plain)
    saving.gradient_checkpointing = True
    ids = torch.randint(0, 61, (2, 24))
    for model in (plain, saving):
        model(ids, ids)[1].backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"width": 0}, "width is 0"),
        ({"width": 25}, "width 25"),
        ({"num_heads": True}, "num_heads is True"),
        ({"num_kv_heads": 3}, "num_kv_heads 3"),
        ({"position": "rotary", "rotary_dim": 3}, "rotary_dim 3"),
        ({"position": "alibi"}, "alibi"),
        ({"activation": "swish"}, "swish"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"surprise": 1}, "surprise"),
        ({"rope_scaling": {"kind": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"kind": "llama3", "factor": 2.0}}, "original_context"),
        ({"rope_scaling": {"kind": "linear", "factor": 0.0}}, "factor is 0.0"),
        ({"rope_scaling": {"kind": "linear", "factor": 1.0, "surprise": 1}}, "surprise"),
        ({"position": "rotary", "rope_scaling": {"kind": "divisors", "factor": 1.0, "divisors": [1.0]}}, "1 divisors"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)  # fmt: skip
def test_contradictions_are_named(change: dict[str, Any], named: str) -> None:
    values = {"vocab_size": 9, "context_length": 8, "width": 24, "num_layers": 1, "num_heads": 4}
    with pytest.raises(ConfigError, match=named):
        ModelConfig.from_dict({**values, **change})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_configs_survive_json(name: str) -> None:
    import json

    config = small_model(name).config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config

"""Makes the model files in tests/runtime/data, which the tests there read without torch or onnx.

    PYTHONPATH=.:export:runtime python tests/runtime/make_fixtures.py

- tiny.onnx: what edgelm writes, all outputs, 260 ids, 24 tokens of context.
- chat.onnx: a begin token, a chat template, two end tokens and defaults of its own.
- cached.onnx: the weights of tiny.onnx, with a cache of keys and values.
- ids.onnx: no tokenizer.
- foreign.onnx: a language model from elsewhere, with a mask, positions, a past and more ids than bytes.
- broken.onnx: tiny.onnx with a weight that is not a number, which a fourth token brings into play.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.model import Transformer
from edgelm_export import export_checkpoint
from edgelm_runtime.text.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
MERGES = [b"th", b"the", b"in"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model(vocab_size: int, **changes: object) -> Transformer:
    """A small model whose weights are large enough to make its choices differ from place to place."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    sizes = {"vocab_size": vocab_size, "context_length": 24, "width": 16, "num_layers": 2, "num_heads": 2}
    made = Transformer(ModelConfig(**(sizes | changes)))  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.2 * torch.randn_like(weight)
    return made


def tokenizer(*special: str) -> Tokenizer:
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGES]
    return Tokenizer(tokens, special={text: len(tokens) + i for i, text in enumerate(special)})


def write_models() -> None:
    outputs = ("embeddings", "hidden")
    plain = tokenizer("<|endoftext|>")
    export_checkpoint(Checkpoint(model(272), plain), DATA / "tiny.onnx", outputs=outputs)
    export_checkpoint(Checkpoint(model(272), plain), DATA / "cached.onnx", outputs=outputs, kv_cache=True)
    export_checkpoint(Checkpoint(model(40), None, {"end_ids": [39]}), DATA / "ids.onnx")
    chat = tokenizer("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    generation = {
        "end_ids": [chat.special["<|im_end|>"], chat.special["<|endoftext|>"]],
        "chat_template": CHATML,
        "bos_id": chat.special["<|endoftext|>"],
        "add_bos": True,
        "temperature": 0.7,
        "max_new_tokens": 5,
    }
    export_checkpoint(Checkpoint(model(264, context_length=96), chat, generation), DATA / "chat.onnx")


def write_broken() -> None:
    broken = onnx.load(DATA / "tiny.onnx")
    (weights,) = (w for w in broken.graph.initializer if w.name == "position_embedding.weight")
    values = numpy_helper.to_array(weights).copy()
    values[3, 0] = np.nan
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save(broken, DATA / "broken.onnx")


def write_foreign() -> None:
    """logits = (table[input_ids] + positions[position_ids]) @ head + bias; the past is only looked at."""
    generator = np.random.default_rng(1)
    constants = {
        "last_axis": np.array([2], np.int64),
        "table": generator.standard_normal((300, 8)).astype(np.float32),
        "positions": generator.standard_normal((64, 8)).astype(np.float32),
        "head": generator.standard_normal((8, 300)).astype(np.float32),
        "bias": np.zeros(300, np.float32),
    }
    # Ids after the tokenizer's 257 are what a padded model would like best.
    constants["bias"][257:] = 20
    ids = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ids)
        for name in ("input_ids", "attention_mask", "position_ids")
    ]
    past = ["batch", 2, "past", 4]
    inputs.append(helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, past))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["by_token"]),
        helper.make_node("Gather", ["positions", "position_ids"], ["by_position"]),
        helper.make_node("Add", ["by_token", "by_position"], ["both"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last_axis"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["mask_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["both", "mask_float"], ["masked"]),
        helper.make_node("MatMul", ["masked", "head"], ["projected"]),
        helper.make_node("Add", ["projected", "bias"], ["logits"]),
        helper.make_node("Identity", ["past_key_values.0.key"], ["present.0.key"]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*ids, 300]),
        helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, past),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "foreign", inputs, outputs, initializers)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        DATA / "foreign.onnx",
    )


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    write_models()
    write_broken()
    write_foreign()

"""Vectors against transformers, for a model whose tokenizer puts a token after every text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from edgelm.importers import load_source
from edgelm_export import export_checkpoint
from edgelm_runtime import LanguageModel, OptionError, load

END = "<|endoftext|>"


def tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, show_progress=False, special_tokens=[END, "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(["the cat and the hat"], trainer)
    made.post_processor = processors.TemplateProcessing(f"$A {END}", special_tokens=[(END, 0)])
    return made


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LanguageModel, Any, tokenizers.Tokenizer]]:
    """A model file, and the model and the tokenizer that it was made from."""
    folder: Path = tmp_path_factory.mktemp("qwen")
    theirs = tokenizer()
    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, max_position_embeddings=32, vocab_size=theirs.get_vocab_size(),
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    model.tie_weights()
    model.save_pretrained(folder)
    theirs.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    checkpoint = load_source(str(folder))
    assert checkpoint.generation["eos_id"] == theirs.token_to_id(END) and checkpoint.generation["add_eos"]
    export_checkpoint(checkpoint, folder / "model.onnx", outputs=("hidden",))
    with load(folder / "model.onnx") as lm:
        yield lm, model.model, theirs


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("prefix", ["", "Instruct: find the cat\nQuery: "])
def test_vectors_are_those_of_transformers(pair: Any, pooling: Any, prefix: str) -> None:
    lm, model, theirs = pair
    texts = ["the cat", "hello", "a", "the hat and the cat " * 20]
    vectors = lm.embed(texts, pooling=pooling, prefix=prefix)
    theirs.enable_truncation(32)
    for text, vector in zip(texts, vectors, strict=True):
        ids = theirs.encode(prefix + text).ids
        assert ids[-1] == theirs.token_to_id(END)
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0].numpy()
        wanted = states[-1] if pooling == "last" else states.mean(0)
        assert vector @ wanted / np.linalg.norm(wanted) == pytest.approx(1, abs=1e-5), text


def test_only_vectors_get_the_end(pair: Any) -> None:
    lm, _, theirs = pair
    end = theirs.token_to_id(END)
    assert end not in lm.encode_prompt("the cat").tolist()
    assert end not in lm.score("the cat").token_ids
    ids = theirs.encode("the cat", add_special_tokens=False).ids
    assert not np.allclose(lm.embed(ids), lm.embed("the cat"))
    assert np.allclose(lm.embed([*ids, end]), lm.embed("the cat"), atol=1e-6)
    with pytest.raises(OptionError, match="prefix is given, and token ids"):
        lm.embed(ids, prefix="x")
    with pytest.raises(OptionError, match="prefix is 3"):
        lm.embed("x", prefix=3)


def test_any_array_of_ids_works_everywhere(pair: Any) -> None:
    """A tensor, an array and a list are the same to every method that takes ids."""
    lm, _, _ = pair
    plain = [5, 6, 7]
    forms = [torch.tensor(plain), np.array(plain, np.int32), [torch.tensor(i) for i in plain], tuple(plain)]
    wanted = lm.generate(plain, max_new_tokens=3, reference=plain, banned_tokens=plain, forced_tokens=[8, 9])
    for form in forms:
        options: Any = {"max_new_tokens": 3, "reference": form, "banned_tokens": form}
        assert lm.generate(form, **options, forced_tokens=torch.tensor([8, 9])).token_ids == wanted.token_ids
        streamed = [piece.token_id for piece in lm.stream(form, **options, forced_tokens=[8, 9])]
        assert [i for i in streamed if i is not None] == wanted.token_ids
        assert [g.token_ids for g in lm.generate([form, form], **options, forced_tokens=[8, 9])] == [
            wanted.token_ids
        ] * 2
        assert np.array_equal(lm.logits(form), lm.logits(plain))
        assert np.array_equal(lm.score(form).logprobs, lm.score(plain).logprobs)
        assert np.array_equal(lm.embed(form), lm.embed(plain))
        assert lm.embed([form, form]).shape == (2, 32)
        assert lm.tokenizer.decode(form) == lm.tokenizer.decode(plain)
        assert lm.tokenizer.decode(form, skip_special=True) == lm.tokenizer.decode(plain, skip_special=True)
        assert lm.encode_prompt(form).tolist() == plain
    assert len(lm.generate(torch.tensor([plain, plain]), max_new_tokens=1)) == 2
    bias = lm.generate(plain, max_new_tokens=1, logit_bias={torch.tensor(9).item(): 1e4})
    assert bias.token_ids == [9]
    for wrong in (
        torch.tensor([1.5]),
        torch.zeros(1, 1, 1),
        torch.tensor([], dtype=torch.int64),
        {1: 2},
        5,
        None,
    ):
        with pytest.raises(OptionError):
            lm.generate(wrong)

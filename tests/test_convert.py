"""Models written for other programs: the same numbers there, and the same bytes when they come back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from edgelm.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from edgelm.cli import group
from edgelm.config import ModelConfig, RopeScaling
from edgelm.exporters.gguf import write_gguf
from edgelm.exporters.huggingface import write_huggingface
from edgelm.finetuning.templates import CHATML_TEMPLATE, with_special_tokens
from edgelm.importers import load_source
from edgelm.model import Transformer, generate
from edgelm_runtime.errors import ExportError, OutputError
from edgelm_runtime.text.huggingface.pretokenizers import GPT2
from edgelm_runtime.text.tokenizer import Tokenizer
from tests.small_models import LLAMA

transformers = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "context_length": 24,
    "width": 32,
    "num_layers": 2,
    "num_heads": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {
        "position": "rotary", "rotary_dim": 4, "activation": "gelu", "parallel_residual": True, "tied_head": False,
    },
    "llama": {**LLAMA, "num_kv_heads": 2, "rope_theta": 500.0, "tied_head": False},
    "llama scaled": {
        **LLAMA, "num_kv_heads": 1, "head_dim": 10,
        "rope_scaling": RopeScaling(kind="llama3", factor=4.0, original_context=8),
    },
    "mistral": {**LLAMA, "sliding_window": 5, "tied_head": False},
    "qwen2": {**LLAMA, "qkv_bias": True},
    "qwen3": {**LLAMA, "query_key_norm": True, "head_dim": 12},
    "gemma3_text": {
        **LLAMA, "activation": "gelu_tanh", "query_key_norm": True, "post_norm": True, "embedding_scale": 32**0.5,
        "attention_scale": 16**-0.5, "head_dim": 8, "sliding_window": 6, "local_layers": (True, False),
        "local_rope_theta": 100.0,
    },
}  # fmt: skip
GGUF_FAMILIES: dict[str, dict[str, Any]] = {
    **{name: FAMILIES[name] for name in ("gpt2", "llama", "llama scaled", "qwen2", "qwen3")},
    "gemma3": {**FAMILIES["gemma3_text"], "attention_scale": 8**-0.5},
}


def tokenizer() -> Tokenizer:
    merges = [b"th", b"the", b"in", b" t", b" the", b"\xc3\xa9", b"ing"]
    plain = Tokenizer(
        [*(bytes([byte]) for byte in range(256)), *merges], GPT2, special={"<|endoftext|>": 263}
    )
    return with_special_tokens(plain, ("<|im_start|>", "<|im_end|>"))


def checkpoint(family: str) -> Checkpoint:
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**{**SIZES, **{**FAMILIES, **GGUF_FAMILIES}[family]})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.15 * torch.randn_like(weight)
    generation = {"end_ids": [265, 263], "chat_template": CHATML_TEMPLATE, "temperature": 0.5}
    return Checkpoint(model, tokenizer(), generation)


def same_weights(one: Checkpoint, two: Checkpoint) -> bool:
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same(tmp_path: Path, family: str) -> None:
    made, folder = checkpoint(family), tmp_path / "hf"
    assert write_huggingface(made, folder) == family.split()[0]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.randint(272, (2, 20))
    with torch.no_grad():
        expected, found = made.model(ids)[0], theirs(ids).logits
    assert (expected - found).abs().max() < 1e-4 * expected.abs().max()
    assert same_weights(made, load_source(folder))
    again = load_source(folder)
    assert again.generation["chat_template"] == CHATML_TEMPLATE
    assert set(again.generation["end_ids"]) == {265, 263} and again.generation["temperature"] == 0.5


def test_transformers_makes_the_same_tokens_and_prompts(tmp_path: Path) -> None:
    made = checkpoint("llama")
    made.generation |= {"bos_id": 263, "add_bos": True}
    write_huggingface(made, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "the thing is in the café  \n\n 123 🙂"
    ours = made.tokenizer.encode(text)
    assert theirs(text)["input_ids"] == [263, *ours]
    assert theirs.decode(ours) == text
    chat = [{"role": "user", "content": "the thing"}]
    prompt = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>user\nthe thing<|im_end|>\n<|im_start|>assistant\n"
    assert theirs.eos_token == "<|im_end|>"


@pytest.mark.parametrize("file_type", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_a_gguf_file_comes_back_the_same(tmp_path: Path, family: str, file_type: Any) -> None:
    made, path = checkpoint(family), tmp_path / "a.gguf"
    assert write_gguf(made, path, file_type) == family.split()[0]
    again = load_source(path)
    assert same_weights(made, again) == (file_type == "F32")
    text = "the thing is in the café  \n\n 123"
    assert again.tokenizer is not None and made.tokenizer is not None
    assert again.tokenizer.encode(text) == made.tokenizer.encode(text)
    assert again.tokenizer.special == made.tokenizer.special
    assert again.generation["chat_template"] == CHATML_TEMPLATE
    assert set(again.generation["end_ids"]) == {265, 263}
    # What came back from fewer bits goes out and back unchanged.
    write_gguf(again, tmp_path / "b.gguf", "F32")
    assert same_weights(again, load_source(tmp_path / "b.gguf"))


def test_what_has_no_name_there_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    made = checkpoint("gpt2")
    made.held = Transformer(
        ModelConfig(**{**SIZES, "activation": "relu", "head_bias": True, "tied_head": False})
    )
    for write in (write_huggingface, write_gguf):
        with pytest.raises(ExportError, match=r"is this (architecture|one): gpt2 has no"):
            write(made, tmp_path / "out")
    made.held = Transformer(
        ModelConfig(**{**SIZES, **FAMILIES["llama"], "num_experts": 4, "experts_per_token": 2})
    )
    for write in (write_huggingface, write_gguf):
        with pytest.raises(ExportError, match="4 experts in each layer cannot be written"):
            write(made, tmp_path / "out")
    odd = checkpoint("llama")
    assert odd.tokenizer is not None
    odd.tokenizer = Tokenizer(odd.tokenizer.tokens, r"\p{L}+|[^\p{L}]+", odd.tokenizer.special)
    with pytest.raises(ExportError, match="has no name for the way"):
        write_gguf(odd, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("mine")
    with pytest.raises(OutputError, match="is there already"):
        write_huggingface(checkpoint("gpt2"), tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_command_writes_both(tmp_path: Path) -> None:
    save_checkpoint(checkpoint("llama"), tmp_path / "in")
    for arguments in (["--to", "hf", "-o", "hf"], ["--to", "gguf", "-o", "a.gguf", "--type", "F32"]):
        out = str(tmp_path / arguments[3])
        done = CliRunner().invoke(
            group, ["convert", str(tmp_path / "in"), *arguments[:3], out, *arguments[4:]]
        )
        assert done.exit_code == 0, done.output
        assert "of the kind llama" in done.output
        assert same_weights(load_source(out), load_checkpoint(tmp_path / "in"))
    done = CliRunner().invoke(
        group, ["convert", str(tmp_path / "in"), "--to", "hf", "-o", "x", "--type", "F16"]
    )
    assert done.exit_code == 2 and "belongs to --to gguf" in done.output


SERVER = os.environ.get("LLAMA_SERVER", "")


@pytest.mark.skipif(not SERVER, reason="LLAMA_SERVER does not name llama.cpp's llama-server")
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_llama_cpp_makes_the_same_greedy_tokens(tmp_path: Path, family: str) -> None:
    """In float32: with less, llama.cpp rounds what goes through the products as well."""
    made, path = checkpoint(family), tmp_path / "a.gguf"
    write_gguf(made, path, "F32")
    prompt = [made.tokenizer.encode("the thing")[0], 5, 80, 33] if made.tokenizer else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [
        SERVER,
        "-m",
        str(path),
        "--port",
        address.rpartition(":")[2],
        "-c",
        "24",
        "-np",
        "1",
        "-t",
        "1",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            found = completion(address, prompt, 12)
        finally:
            server.terminate()
    assert found == generate(made.model, prompt, max_new_tokens=12)


def completion(address: str, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens from a server that may still be starting."""
    body = {
        "prompt": prompt, "n_predict": count, "temperature": 0, "return_tokens": True, "ignore_eos": True,
        "cache_prompt": False,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(200):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                tokens: list[int] = json.load(answer)["tokens"]
                return tokens
        except OSError:
            time.sleep(0.3)
    raise AssertionError("the server does not answer")

"""PyTorch checkpoints of train-llm-from-scratch and of nanoGPT, by small re-creations of both models, and what
a hostile or damaged file may not do."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from torch import nn

from edgelm.checkpoint import load_checkpoint, save_checkpoint
from edgelm.cli.import_command import command
from edgelm.importers import load_source
from edgelm.importers.files.pickles import plain_pickle
from edgelm_runtime.errors import CheckpointError, EdgelmError, TokenizerError
from edgelm_runtime.text.tokenizer_loading import load_tokenizer
from tests.published_models import LlmFromScratch, NanoGPT

torch.set_num_threads(1)


def random_weights(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model.eval()


def compare(source: Path, reference: nn.Module, vocab: int, **options: Any) -> Any:
    checkpoint = load_source(source, **{"tokenizer": "none", **options})
    ids = torch.randint(0, vocab, (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = reference(ids)
        torch.testing.assert_close(checkpoint.model(ids)[0], expected, atol=1e-4, rtol=1e-4)
    assert float(expected.std()) > 0.1
    return checkpoint


# train-llm-from-scratch


def prefixed(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in state.items()}


SEED_FILES = {
    "with a config": lambda state: {"model_state_dict": state, "optimizer_state_dict": {"state": {}}, "losses": [3.5],
        "train_loss": np.float64(2.0), "config": {"n_embed": 1, "t_context_length": 5},
        "pytorch_version": torch.__version__, "device": "cpu", "steps": 7},
    "with cfg": lambda state: {"model_state_dict": state, "cfg": {"n_blocks": 3}, "optimizer_state_dict": None},
    "with neither": lambda state: {"model_state_dict": state},
    "bare": lambda state: state,
    "compiled and distributed": lambda state: {"model_state_dict": prefixed("module._orig_mod.", state)},
    "reward model": lambda state: {"model_state_dict": {**prefixed("transformer.", state),
        "reward_head.weight": torch.ones(1, 30)}},
    "value head": lambda state: {"model_state_dict": {**state, "value_head.weight": torch.ones(1, 30),
        "value_head.bias": torch.ones(1)}},
}  # fmt: skip


@pytest.mark.parametrize("kind", SEED_FILES)
def test_seed_checkpoints(kind: str, tmp_path: Path) -> None:
    model = random_weights(LlmFromScratch())
    torch.save(SEED_FILES[kind](model.state_dict()), tmp_path / "m.pt")
    checkpoint = compare(tmp_path / "m.pt", model, 70)
    assert (checkpoint.config.vocab_size, checkpoint.config.context_length, checkpoint.config.num_heads) == (
        70,
        26,
        5,
    )


def test_seed_checkpoints_without_projection(tmp_path: Path) -> None:
    model = random_weights(LlmFromScratch(projection=False))
    torch.save({"model_state_dict": model.state_dict()}, tmp_path / "m.pt")
    compare(tmp_path / "m.pt", model, 70)


def test_seed_keys_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = random_weights(LlmFromScratch()).state_dict()
    del state["attn_blocks.1.attn.proj.bias"]
    torch.save({"model_state_dict": {**state, "gate.weight": torch.ones(2)}}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"missing attn_blocks.1.attn.proj.bias; unknown gate.weight"):
        load_source(tmp_path / "m.pt", tokenizer="none")


def test_seed_text_is_r50k_unless_the_file_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiktoken

    def offline(name: str) -> None:
        raise OSError(f"cannot download {name}")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    state = random_weights(LlmFromScratch(vocab=300)).state_dict()
    torch.save({"model_state_dict": state}, tmp_path / "m.pt")
    with pytest.raises(TokenizerError, match=r"r50k_base.*--tokenizer PATH\|NAME, or --tokenizer none"):
        load_source(tmp_path / "m.pt")
    assert load_source(tmp_path / "m.pt", tokenizer="bytes").generation == {"end_ids": [256]}
    pairs = [[ord("t"), ord("h")], [256, ord("e")], [ord(" "), 257]]
    spec = {
        "type": "bpe",
        "version": 1,
        "pattern": r"\s?\w+|\s+|[^\w\s]+",
        "merges": pairs,
        "special_tokens": ["<|endoftext|>"],
    }
    torch.save({"model_state_dict": state, "config": {"tokenizer": spec}}, tmp_path / "m.pt")
    checkpoint = load_source(tmp_path / "m.pt")
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.encode("on the them") == [111, 110, 258, 258, 109]
    assert checkpoint.generation == {"end_ids": [259]} and checkpoint.tokenizer.vocab_size == 260


# nanoGPT


def nanogpt(tmp_path: Path, bias: bool, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    arguments = {
        "n_layer": 3,
        "n_head": 3,
        "n_embd": 24,
        "block_size": 32,
        "bias": bias,
        "vocab_size": 65,
        "dropout": 0.1,
    }
    model = random_weights(NanoGPT(arguments))
    saved = {"model": model.state_dict(), "optimizer": {"state": {}, "param_groups": []}, "model_args": arguments,
             "iter_num": 5, "best_val_loss": torch.tensor(1.5), "config": {"dataset": "poems", "bias": bias},
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    torch.save({**saved, **changes}, tmp_path / "out" / "ckpt.pt")
    return model, saved


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpt_checkpoints(bias: bool, prefix: str, tmp_path: Path) -> None:
    model, saved = nanogpt(tmp_path, bias)
    saved["model"] = {prefix + key: value for key, value in saved["model"].items()}
    torch.save(saved, tmp_path / "out" / "ckpt.pt")
    checkpoint = compare(tmp_path / "out" / "ckpt.pt", model, 65)
    compare(tmp_path / "out", model, 65)
    assert checkpoint.config.tied_head and checkpoint.config.qkv_bias == bias


@pytest.mark.parametrize("folder", ["out", "data/poems"])
def test_nanogpt_character_tables_are_found(folder: str, tmp_path: Path) -> None:
    nanogpt(tmp_path, False)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    stoi = {chr(32 + i): i for i in range(65)}
    (tmp_path / folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "stoi": stoi, "itos": {}}))
    checkpoint = load_source(tmp_path / "out" / "ckpt.pt")
    assert checkpoint.tokenizer is not None and checkpoint.tokenizer.encode("AZ !") == [33, 58, 0, 1]


def test_nanogpt_without_a_table_names_the_ways_on(tmp_path: Path) -> None:
    nanogpt(tmp_path, False, config={"dataset": "../../secrets"})
    with pytest.raises(
        TokenizerError, match=r"vocabulary of 65 .*--tokenizer PATH\|NAME, or --tokenizer none"
    ):
        load_source(tmp_path / "out" / "ckpt.pt")


def test_nanogpt_variants_are_refused_by_name(tmp_path: Path) -> None:
    nanogpt(tmp_path, False, model_args={"n_head": 3, "use_rmsnorm": True})
    with pytest.raises(CheckpointError, match="use_rmsnorm"):
        load_source(tmp_path / "out" / "ckpt.pt", tokenizer="none")


# Safety


class RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("old_format", [False, True])
def test_files_that_want_more_than_tensors_are_refused_by_name(old_format: bool, tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    for value, name in (
        (RunsCode(mark), r"(posix|nt)\.system"),
        (argparse.Namespace(a=1), r"argparse\.Namespace"),
    ):
        saved = {"model_state_dict": LlmFromScratch().state_dict(), "extra": value}
        torch.save(saved, tmp_path / "m.pt", _use_new_zipfile_serialization=not old_format)
        with pytest.raises(CheckpointError, match=name):
            load_source(tmp_path / "m.pt", tokenizer="none")
    (tmp_path / "m.pt").write_bytes(pickle.dumps(RunsCode(mark)))
    with pytest.raises(CheckpointError, match="no PyTorch file"):
        load_source(tmp_path / "m.pt", tokenizer="none")
    assert not mark.exists()


def test_files_before_pytorch_1_6_are_read(tmp_path: Path) -> None:
    model = random_weights(LlmFromScratch())
    torch.save(model.state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    compare(tmp_path / "m.pt", model, 70)


def refused_quickly(path: Path, match: str) -> None:
    started = time.perf_counter()
    with pytest.raises(EdgelmError, match=match):
        load_source(path, tokenizer="none")
    assert time.perf_counter() - started < 1.0


def test_damaged_files_say_so(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"model_state_dict": random_weights(LlmFromScratch()).state_dict()}, path)
    whole = path.read_bytes()
    for length in (0, 2, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:length])
        refused_quickly(path, "damaged|no PyTorch file")


def test_tensors_larger_than_their_bytes_are_refused(tmp_path: Path) -> None:
    state = LlmFromScratch().state_dict()
    state["lm_head.weight"] = torch.ones(1).as_strided((10**6, 10**6), (0, 0))
    torch.save({"model_state_dict": state}, tmp_path / "m.pt")
    refused_quickly(tmp_path / "m.pt", r"lm_head.weight claims shape \(1000000, 1000000\)")


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", b"\x00" * 10**7)
    refused_quickly(tmp_path / "m.pt", "compressed")


def test_unknown_layouts_list_their_keys(tmp_path: Path) -> None:
    torch.save({"encoder.weight": torch.ones(2), "bias": torch.ones(1)}, tmp_path / "m.pt")
    refused_quickly(tmp_path / "m.pt", r"unknown layout: encoder\.weight, bias")
    (tmp_path / "m.pt").write_text("hello")
    refused_quickly(tmp_path / "m.pt", "no PyTorch file")
    refused_quickly(tmp_path / "nowhere.pt", "there is no")
    (tmp_path / "empty").mkdir()
    refused_quickly(tmp_path / "empty", "no model that is known")


def folder(path: Path) -> Path:
    """A Hugging Face folder with a GPT-2 in it."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=8, n_layer=1, eos_token_id=1, bos_token_id=0, n_head=2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def test_damaged_safetensors_say_so(tmp_path: Path) -> None:
    path = folder(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    damaged = [whole[:5], whole[:50], whole[: len(whole) // 2], whole[:-1], (1 << 62).to_bytes(8, "little") + whole[8:],
               whole.replace(b'"shape":[40,8]', b'"shape":[99,9]')]  # fmt: skip
    for data in damaged:
        path.write_bytes(data)
        refused_quickly(tmp_path, r"model\.safetensors is damaged")


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", ".hidden"])
def test_a_shard_index_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    inner = folder(tmp_path / "model")
    (inner / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    refused_quickly(inner, "must lie next to its index")


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"]
)
def test_links_out_of_the_folder_are_refused(file: str, tmp_path: Path) -> None:
    inner = folder(tmp_path / "model")
    (inner / "tokenizer.json").write_text("{}")
    (inner / file).rename(tmp_path / "elsewhere")
    (inner / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EdgelmError, match="leads out of"):
        load_source(inner, tokenizer=None if file == "tokenizer.json" else "none")


def test_the_hubs_cache_of_links_is_read(tmp_path: Path) -> None:
    snapshot = folder(tmp_path / "models--a--b" / "snapshots" / "123")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for file in list(snapshot.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("../../blobs") / file.name)
    assert load_source(snapshot, tokenizer="none").config.vocab_size == 40


def test_nested_json_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "config.json").write_text("[" * 200_000)
    refused_quickly(tmp_path, "cannot read .*config.json")


# The command


def test_import_command(tmp_path: Path) -> None:
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False)
    reference.train_from_iterator(["the thing"], trainer)
    model = random_weights(LlmFromScratch(vocab=300))
    torch.save({"model_state_dict": model.state_dict()}, tmp_path / "m.pt")
    reference.save(str(tmp_path / "tokenizer.json"))
    arguments = [str(tmp_path / "m.pt"), "--out", str(tmp_path / "out"), "--tokenizer"]
    done = CliRunner().invoke(command, [*arguments, str(tmp_path / "tokenizer.json")])
    assert done.exit_code == 0 and "context 26" in done.output, done.output
    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.encode("the thing") == reference.encode("the thing").ids
    compare(tmp_path / "out", model, 256, tokenizer=None)
    failed = CliRunner().invoke(command, [*arguments, "nonsense"])
    assert isinstance(failed.exception, EdgelmError) and "nonsense" in str(failed.exception)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456789\n"


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "config.json",
        "ckpt.pt",
        "m.gguf",
        "model.pt",
        "tokenizer.json",
    ],
)
def test_git_lfs_pointers_are_named(name: str, tmp_path: Path) -> None:
    """Whatever file of a source such a pointer stands for."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_bytes(POINTER)
    source = (
        tmp_path if name in ("model.safetensors", "pytorch_model.bin", "config.json") else tmp_path / name
    )
    with pytest.raises(EdgelmError, match=f"{name} is a Git LFS pointer.*git lfs pull"):
        if name == "tokenizer.json":
            load_tokenizer(tmp_path)
        else:
            load_source(source, tokenizer="none")


def test_an_exchanged_tokenizer_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoint = load_source(saved_nanogpt(tmp_path), tokenizer="bytes")
    save_checkpoint(checkpoint, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").tokenizer is not None
    path = tmp_path / "out" / "tokenizer.json"
    values = json.loads(path.read_text())
    values["tokens"][65], values["tokens"][66] = values["tokens"][66], values["tokens"][65]
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="not the tokenizer that the model was saved with"):
        load_checkpoint(tmp_path / "out")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"lacks its tokenizer\.json"):
        load_checkpoint(tmp_path / "out")


def saved_nanogpt(folder: Path) -> Path:
    arguments = {"n_layer": 2, "n_head": 4, "n_embd": 24, "block_size": 32, "bias": True, "vocab_size": 257}
    model = random_weights(NanoGPT(arguments))
    torch.save({"model": model.state_dict(), "model_args": arguments}, folder / "ckpt.pt")
    return folder / "ckpt.pt"


@pytest.mark.parametrize("kind", ["nanogpt", "llm_from_scratch"])
def test_a_head_that_is_missing_is_not_taken_for_a_tied_one(kind: str, tmp_path: Path) -> None:
    if kind == "nanogpt":
        path = saved_nanogpt(tmp_path)
        saved = torch.load(path, weights_only=True)
        del saved["model"]["lm_head.weight"]
    else:
        path = tmp_path / "x.pt"
        saved = {"model_state_dict": random_weights(LlmFromScratch()).state_dict()}
        del saved["model_state_dict"]["lm_head.weight"]
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
        load_source(path, tokenizer="none")


def test_pickles_that_never_end_are_refused(tmp_path: Path) -> None:
    """Forty tuples that each hold the one before twice: as a key, one would be hashed for ever."""
    value: Any = ("a",)
    for _ in range(40):
        value = (value, value)
    torch.save({"model": {}, "x": [value]}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="hold one another too often"):
        load_source(tmp_path / "a.pt", tokenizer="none")
    for protocol in range(6):
        with pytest.raises(ValueError, match="hold one another too often"):
            plain_pickle(pickle.dumps({"stoi": {"a": 0}, "x": [value]}, protocol))

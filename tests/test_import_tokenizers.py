"""tokenizer.json of every supported kind, against the `tokenizers` library on texts of this test."""

from __future__ import annotations

import base64
import json
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from edgelm.importers.pytorch.nanogpt import character_tokenizer
from edgelm.importers.requested_tokenizer import read_tokenizer, requested_tokenizer
from edgelm_runtime.errors import MissingExtraError, OptionError, TokenizerError
from edgelm_runtime.text.huggingface.convert import convert
from edgelm_runtime.text.huggingface.pretokenizers import GPT2, LLAMA3, QWEN2
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

CORPUS = (
    "It's a dog's life, they've said; WE'LL see 12345 of 3.14!\n\n\n    if x == y:\n\t\treturn foo_bar(baz[0])  \n"
    "fünf große Straßen, naïve café; привет мир, как дела; 你好世界今天天气很好; こんにちは; नमस्ते दुनिया; "
    "مرحبا 🎉🎈👩‍👩‍👧 "
    "Cafe\u0301 e\u0301te\u0301   a  b   c    d\r\nend\r\n"
) * 4  # fmt: skip


def texts() -> list[str]:
    """Other texts than those of the import's own check."""
    draw = random.Random(11)
    words = CORPUS.split()
    mixed = [draw.choice(("", " ", "  ", "\n", "\t")).join(draw.choices(words, k=9)) for _ in range(150)]
    noise = ["".join(draw.choices("aZ9é你!' \n\t\r_-.\u0301\u3000🎉\u2581", k=25)) for _ in range(150)]
    return [CORPUS, "", " ", "\u2581", *mixed, *noise]


def trained(pre: Any, normalizer: Any = None, size: int = 500, **trainer: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": ["<|end|>"]}
    tokenizer.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=size, show_progress=False, **(options | trainer))
    )
    return tokenizer


def split(pattern: str) -> Any:
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


def with_added() -> tokenizers.Tokenizer:
    """Pythia's and Qwen's habit: tokens that are not special, matched before merging, the longest first."""
    tokenizer = trained(byte_level(), normalizers.NFC())
    tokenizer.add_tokens(["   ", "  ", "<think>", "<think>x"])
    tokenizer.add_special_tokens(["<|pad|>"])
    return tokenizer


def without_some_bytes() -> tokenizers.Tokenizer:
    return trained(single_digits(), initial_alphabet=[])


BYTE_LEVEL = {
    "gpt2": lambda: trained(byte_level()),
    "llama3": lambda: trained(split(LLAMA3)),
    "qwen": lambda: trained(split(QWEN2), normalizers.NFC()),
    "smollm": lambda: trained(single_digits()),
    "gpt2 as a split": lambda: trained(split(GPT2)),
    "added": with_added,
}


def same(tokenizer: Tokenizer, reference: tokenizers.Tokenizer) -> None:
    reference.encode_special_tokens = True
    for text in texts():
        ids = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=False), text


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_byte_level_tokenizers(kind: str) -> None:
    reference = BYTE_LEVEL[kind]()
    tokenizer = convert(json.loads(reference.to_str()), kind).tokenizer
    same(tokenizer, reference)
    assert tokenizer.encode("a<|end|>") != tokenizer.encode("a<|end|>", ["<|end|>"])
    assert tokenizer.encode("a<|end|>", ["<|end|>"])[-1] == tokenizer.special["<|end|>"] == 0
    same(Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))), reference)


def test_vocabularies_that_lack_bytes_leave_characters_out() -> None:
    tokenizer = convert(json.loads(without_some_bytes().to_str()), "x").tokenizer
    assert tokenizer.decode(tokenizer.encode("a\x04b\x06 naïve")) == "ab naïve"


def test_whole_pieces_first() -> None:
    """`ignore_merges`: a piece of the vocabulary is itself, even where its merges lead elsewhere."""
    values = json.loads(trained(split(LLAMA3)).to_str())
    values["model"]["ignore_merges"] = True
    same(convert(values, "x").tokenizer, tokenizers.Tokenizer.from_str(json.dumps(values)))


def test_pieces_that_text_cannot_become_still_decode() -> None:
    values = json.loads(trained(byte_level()).to_str())
    values["model"]["vocab"]["zqzq"] = 500
    tokenizer = convert(values, "x").tokenizer
    assert tokenizer.decode([500]) == "zqzq" and 500 not in tokenizer.encode("zqzq zqzq")


def sentencepiece(style: str) -> tokenizers.Tokenizer:
    """Byte fallback and merges by score, as Llama 2 (normaliser), Mistral v3 (Metaspace) and Gemma have it."""
    base = trained(pre_tokenizers.Metaspace(prepend_scheme="first", split=style == "words"), size=420,
                   initial_alphabet=[], limit_alphabet=70, special_tokens=[])  # fmt: skip
    model = json.loads(base.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    order = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    vocab = {piece: i for i, piece in enumerate(order)}
    rank = {piece: i for i, piece in enumerate(pieces) if len(piece) > 1}
    merges = sorted(
        (rank[p], p[:i], p[i:]) for p in rank for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab
    )
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab, [(a, b) for _, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    replace = normalizers.Replace(" ", "\u2581")
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif style == "gemma":
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    if style != "gemma":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.mark.parametrize("style", ["words", "across words", "metaspace", "gemma"])
def test_sentencepiece_tokenizers(style: str) -> None:
    reference = sentencepiece(style)
    if style == "gemma":
        reference.add_tokens(["\n\n", "\n", "<img>"])
    tokenizer = convert(json.loads(reference.to_str()), style).tokenizer
    same(tokenizer, reference)
    same(Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))), reference)
    for special in ("a</s>b", "<s> hey</s>", "</s></s>x <s>"):
        reference.encode_special_tokens = False
        wanted = reference.encode(special, add_special_tokens=False).ids
        assert tokenizer.encode(special, "all") == wanted, special
    assert tokenizer.decode([3 + 0xE4, 3 + 0xBD, 3 + 0xA0]) == "你"


def test_begin_of_text_comes_from_the_post_processor() -> None:
    reference = trained(byte_level())
    assert convert(json.loads(reference.to_str()), "x").bos_id is None
    reference.post_processor = processors.TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", 0)])
    assert convert(json.loads(reference.to_str()), "x").bos_id == 0
    reference.post_processor = processors.TemplateProcessing("$A <|end|>", special_tokens=[("<|end|>", 0)])
    found = convert(json.loads(reference.to_str()), "x")
    assert (found.bos_id, found.eos_id) == (None, 0)


def edited(change: dict[str, Any], **model: Any) -> dict[str, Any]:
    values = json.loads(trained(byte_level()).to_str())
    return {**values, **change, "model": {**values["model"], **model}}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (edited({}, type="WordPiece"), "WordPiece|variant|cannot read"),
        (edited({"normalizer": {"type": "Lowercase"}}), "Lowercase"),
        (edited({"normalizer": {"type": "NFKC"}}), "NFKC"),
        (edited({"pre_tokenizer": {"type": "Whitespace"}}), "Whitespace"),
        (edited({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}}), "ByteLevel"),
        (edited({"added_tokens": [{"id": 1, "content": "!", "special": False, "normalized": False, "lstrip": False,
                                   "rstrip": False, "single_word": True}]}), "single_word"),
        (edited({}, byte_fallback=True, type="Unigram"), "Unigram|cannot read"),
        (edited({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}), "Digits"),
        (edited({}, end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (edited({"pre_tokenizer": None}), "byte fallback"),
        ({"model": 3}, "cannot read"),
        ({}, "cannot read"),
    ],
)  # fmt: skip
def test_other_kinds_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(TokenizerError, match=named):
        convert(values, "x")


def test_a_difference_is_an_error_that_shows_the_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that is nearly right: digits in groups of three instead of one by one."""
    monkeypatch.setattr("edgelm_runtime.text.huggingface.pretokenizers.GPT2_SINGLE_DIGITS", GPT2)
    with pytest.raises(TokenizerError, match=r'the text ".*\d.*" would give ids'):
        convert(json.loads(trained(single_digits()).to_str()), "x")


def test_ids_beyond_the_model_are_left_out_or_refused() -> None:
    values = json.loads(trained(byte_level()).to_str())
    size = len(values["model"]["vocab"])
    extra = {"id": size, "content": "<img>", "special": True, "normalized": False, "lstrip": False,
             "rstrip": False, "single_word": False}  # fmt: skip
    values["added_tokens"].append(extra)
    assert "<img>" not in convert(values, "x", rows=size).tokenizer.special
    with pytest.raises(TokenizerError, match=f"the model only {size - 5} rows"):
        convert(values, "x", rows=size - 5)


# Added and special tokens with habits


def with_habits(base: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Tokens as `add_tokens` makes them (looked for in normalised text), and such as take white space along."""
    base.add_tokens(["<think>", "</think>", "<think>x"])
    if base.normalizer is None:
        base.add_tokens(["\u2581y"])
    base.add_tokens([tokenizers.AddedToken("<raw>", normalized=False)])
    base.add_special_tokens([
        tokenizers.AddedToken("<|user|>", rstrip=True, normalized=False),
        tokenizers.AddedToken("<mask>", lstrip=True, normalized=False),
        tokenizers.AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
    ])  # fmt: skip
    return base


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "across words", "metaspace", "gemma"])
def test_added_tokens_with_habits(kind: str) -> None:
    reference = with_habits(BYTE_LEVEL[kind]() if kind in BYTE_LEVEL else sentencepiece(kind))
    tokenizer = convert(json.loads(reference.to_str()), kind).tokenizer
    saved = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    draw = random.Random(5)
    pieces = [*tokenizer.added, *tokenizer.special, " ", "  ", "the", "cat", "\n", "\u0301", "\u2581", "\xa0"]
    reference.encode_special_tokens = False
    for _ in range(400):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 9)))
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert saved.encode(text, "all") == wanted, text
    same(tokenizer, reference)


def test_a_wrong_id_of_an_added_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check tries every one of them, here a token of which only the habit would be lost."""
    monkeypatch.setattr("edgelm_runtime.text.named_tokens._SPACES", "")
    reference = trained(byte_level())
    reference.add_tokens([tokenizers.AddedToken("<x>", lstrip=True, normalized=False)])
    with pytest.raises(TokenizerError, match="would give ids"):
        convert(json.loads(reference.to_str()), "x")


# Files that are written in other ways


@pytest.mark.parametrize("change", [
    {"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}},
    {"padding": {"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1,
                 "pad_type_id": 0, "pad_token": "x"}},
], ids=["truncation", "padding"])  # fmt: skip
def test_what_the_last_call_left_behind_does_not_count(change: dict[str, Any]) -> None:
    same(convert(edited(change), "x").tokenizer, trained(byte_level()))


def test_a_model_without_a_type_is_bpe() -> None:
    values = edited({})
    del values["model"]["type"]
    values["model"]["merges"] = [" ".join(pair) for pair in values["model"]["merges"]]
    same(convert(values, "x").tokenizer, trained(byte_level()))


def test_byte_level_with_a_space_in_front() -> None:
    reference = trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
    reference.add_tokens(["<think>"])
    same(convert(json.loads(reference.to_str()), "x").tokenizer, reference)


def test_bytes_that_the_vocabulary_lacks_become_the_unknown_token() -> None:
    reference = trained(single_digits(), initial_alphabet=[], special_tokens=["<unk>"])
    values = json.loads(reference.to_str())
    values["model"]["unk_token"] = "<unk>"
    same(convert(values, "x").tokenizer, tokenizers.Tokenizer.from_str(json.dumps(values)))
    values["model"]["unk_token"] = "<not there>"
    with pytest.raises(OptionError, match="has nothing for"):
        convert(values, "x").tokenizer.encode("\x04")
    values["model"] |= {"unk_token": "<unk>", "fuse_unk": True}
    with pytest.raises(TokenizerError, match="fuses unknown bytes"):
        convert(values, "x")


def test_byte_fallback_without_all_bytes() -> None:
    values = json.loads(sentencepiece("across words").to_str())
    for byte in (0xC0, 0xF5, 0xFF):  # which no text holds
        del values["model"]["vocab"][f"<0x{byte:02X}>"]
    same(convert(values, "x").tokenizer, tokenizers.Tokenizer.from_str(json.dumps(values)))
    del values["model"]["vocab"]["<0x41>"]
    with pytest.raises(TokenizerError, match="lacks the byte token <0x41>"):
        convert(values, "x")


def vocab_and_merges(folder: Path, about: dict[str, Any]) -> tokenizers.Tokenizer:
    reference = trained(byte_level(), special_tokens=["<|endoftext|>"])
    model = json.loads(reference.to_str())["model"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return reference


def test_vocabulary_and_merges_in_files_of_their_own(tmp_path: Path) -> None:
    reference = vocab_and_merges(tmp_path / "a", {"tokenizer_class": "GPT2Tokenizer"})
    tokenizer = read_tokenizer(str(tmp_path / "a")).tokenizer
    same(tokenizer, reference)
    assert tokenizer.special == {"<|endoftext|>": 0}
    vocab_and_merges(tmp_path / "b", {"tokenizer_class": "BartTokenizer"})
    with pytest.raises(TokenizerError, match="of a BartTokenizer; known are GPT2Tokenizer"):
        read_tokenizer(str(tmp_path / "b"))


def test_added_tokens_of_the_config_beside_the_tokenizer(tmp_path: Path) -> None:
    reference = trained(byte_level())
    reference.save(str(tmp_path / "tokenizer.json"))
    size = reference.get_vocab_size()
    token = {"content": "<tool>", "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {str(size): token}}))
    assert size in read_tokenizer(str(tmp_path)).tokenizer.encode("a <tool> b")


# A tokenizer.json wherever a tokenizer can be given


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_a_tokenizer_json_is_loaded_by_the_runtime(kind: str, tmp_path: Path) -> None:
    reference = BYTE_LEVEL[kind]()
    reference.save(str(tmp_path / "tokenizer.json"))
    same(load_tokenizer(tmp_path), reference)
    same(load_tokenizer(str(tmp_path / "tokenizer.json")), reference)


def test_only_other_forms_need_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(split(LLAMA3)).save(str(tmp_path / "plain.json"))
    sentencepiece("words").save(str(tmp_path / "other.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load_tokenizer(tmp_path / "plain.json").encode("the cat")
    with pytest.raises(MissingExtraError, match=r"pip install 'edgelm\[train\]'"):
        load_tokenizer(tmp_path / "other.json")


# Time


@pytest.mark.parametrize("kind", [*BYTE_LEVEL, "across words", "gemma"])
def test_long_runs_take_linear_time(kind: str) -> None:
    """A million equal characters in less than 5 seconds; ten thousand as the original has them."""
    reference = BYTE_LEVEL[kind]() if kind in BYTE_LEVEL else sentencepiece(kind)
    tokenizer = convert(json.loads(reference.to_str()), kind).tokenizer
    for character in " \na1!é":
        run = character * 10_000 + "x"
        assert tokenizer.encode(run) == reference.encode(run, add_special_tokens=False).ids
        start = time.perf_counter()
        ids = tokenizer.encode(character * 1_100_000)
        assert time.perf_counter() - start < 5
        assert tokenizer.decode(ids) == character * 1_100_000


def test_patterns_that_are_slow_are_refused_by_name() -> None:
    for pattern in (r"(?:a|a)*(?=b)|[\s\S]", r"(?:\w+\s?)*(?!\S)x|[\s\S]"):
        with pytest.raises(TokenizerError, match=r"the pattern .* is too slow on \d+ times"):
            convert(json.loads(trained(split(pattern)).to_str()), "x")


def test_patterns_that_grow_are_refused_before_they_are_compiled() -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    for pattern in ("(?:(?:(?=a)a{999}){999}){999}", "(?:(?:x{50}){50}){50}", "a" * 70_000):
        with pytest.raises(TokenizerError, match=r"repeats a part \d+ times|has 70000 characters"):
            Tokenizer(tokens, pattern)


# `--tokenizer`, and nanoGPT's character tables


def test_a_tokenizer_by_path(tmp_path: Path) -> None:
    reference = trained(byte_level())
    reference.save(str(tmp_path / "tokenizer.json"))
    ours = read_tokenizer(str(tmp_path)).tokenizer
    (tmp_path / "ours.json").write_text(json.dumps(ours.to_dict()))
    for name in (tmp_path / "tokenizer.json", tmp_path, tmp_path / "ours.json"):
        assert read_tokenizer(str(name)).tokenizer.encode(CORPUS) == ours.encode(CORPUS)
    assert read_tokenizer("bytes").tokenizer.vocab_size == 257
    assert requested_tokenizer("none").tokenizer(lambda: pytest.fail("not needed"), 5, "x") is None
    with pytest.raises(TokenizerError, match="has 257 ids, the model of x only 5 rows"):
        requested_tokenizer("bytes").tokenizer(lambda: pytest.fail("not needed"), 5, "x")


def test_character_tables(tmp_path: Path) -> None:
    stoi = {c: i for i, c in enumerate("\n abcé你")}
    path = tmp_path / "meta.pkl"
    path.write_bytes(pickle.dumps({"vocab_size": 7, "itos": {i: c for c, i in stoi.items()}, "stoi": stoi}))
    tokenizer = character_tokenizer(path)
    assert tokenizer.encode("a 你é\nb") == [stoi[c] for c in "a 你é\nb"]
    assert tokenizer.decode([6, 5, 0, 2]) == "你é\na" and tokenizer.vocab_size == 7
    with pytest.raises(OptionError, match="nothing for 'z'"):
        tokenizer.encode("abz")
    with pytest.raises(OptionError, match="nothing for 'ü'"):
        tokenizer.encode("aü")


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch /tmp/edgelm-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_character_tables_run_nothing(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "meta.pkl"
    path.write_bytes(pickle.dumps({"stoi": {"a": 0}, "x": Malicious()}, protocol))
    with pytest.raises(TokenizerError, match=r"(posix|nt)\.system"):
        character_tokenizer(path)


def test_damaged_character_tables_allocate_nothing(tmp_path: Path) -> None:
    good = pickle.dumps({"stoi": {"a": 0}})
    damaged = [
        good[:-4],
        b"",
        b"\x80\x04K\x01r\xff\xff\xff\x7f.",
        b"\x80\x04\x8e" + b"\xff" * 6 + b"\x00\x00a.",
    ]
    for data in damaged:
        (tmp_path / "meta.pkl").write_bytes(data)
        with pytest.raises(TokenizerError, match="no character table"):
            character_tokenizer(tmp_path / "meta.pkl")


def test_saved_tokenizers_with_wild_ids_are_refused() -> None:
    values = {
        "tokens": [base64.b64encode(bytes([b])).decode() for b in range(256)],
        "pattern": ".",
        "special": {},
    }
    for change in (
        {"special": {"x": -1}},
        {"ids": [-1] * 256},
        {"decode_only": {"-5": "YQ=="}},
        {"normalization": "NFD"},
    ):
        with pytest.raises(TokenizerError):
            Tokenizer.from_dict({**values, **change})

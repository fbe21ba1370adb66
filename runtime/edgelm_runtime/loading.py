"""From a path or bytes to a `LanguageModel`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from edgelm_runtime.assets import assets_folder
from edgelm_runtime.engine.cached_decoder import CachedDecoder
from edgelm_runtime.engine.kv_buffers import cache_device
from edgelm_runtime.engine.recompute_decoder import ForeignDecoder, RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ModelFileError, OptionError
from edgelm_runtime.generation.options import defaults_from_file, split_options
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.model_file.digest import check_sidecar
from edgelm_runtime.model_file.fields import EXPORT_AGAIN
from edgelm_runtime.model_file.interface import (
    ATTENTION_MASK,
    CACHE_LENGTH,
    CONTEXT_LENGTH,
    END_IDS,
    INPUT_IDS,
    LOGITS,
    PAST,
    POSITION_IDS,
    VOCAB_SIZE,
)
from edgelm_runtime.model_file.metadata import ModelFile, is_model_file, read_model_file
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.validation import choice, path_of, shown, whole

if TYPE_CHECKING:
    from edgelm_runtime.generation.decoder import Decoder

BUNDLED = "python.onnx"

Decode = Literal["auto", "recompute", "cached"]


def load(
    path: str | Path | bytes | None = None,
    provider: str = "auto",
    threads: int | None = None,
    *,
    decode: Decode = "auto",
    tokenizer: Tokenizer | None = None,
    context_length: int | None = None,
) -> LanguageModel:
    """Load a model file, or its bytes; None loads the model that ships with edgelm.

    `provider`: auto, cpu, cuda, or another that this onnxruntime has. `threads`: by default as many as the process
    may use. `decode`: `recompute` the whole window at every step, use what is `cached` (needs a file with a KV
    cache), or `auto`: the cache, where the file has one and it is kept where the model is computed. `tokenizer` is
    for model files without one. With `context_length`, in tokens, a plain ONNX language model without edgelm's
    metadata runs too.

    The file may be replaced, moved or deleted while it is in use; the model stays the one that was loaded.

    Raises ModelFileError where the file is missing, damaged, changed after its export or of a newer format,
    ProviderError where the provider asked for does not run, OptionError for a value that cannot be used or that the
    file settles itself.
    """
    started = time.perf_counter()
    source = _source(path)
    choice("decode", decode, get_args(Decode))
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise OptionError(
            f"tokenizer is {shown(tokenizer)}", "give a Tokenizer, such as load_tokenizer returns"
        )
    if context_length is not None:
        whole("context_length", context_length, 1)
    name = "the model given as bytes" if isinstance(source, bytes) else str(source)
    session = Session(source, provider, threads)
    try:
        info, decoder = _prepared(session, name, decode, tokenizer, context_length)
    except BaseException:
        session.close()
        raise
    return LanguageModel(session, info, decoder, time.perf_counter() - started)


def _source(path: str | Path | bytes | None) -> Path | bytes:
    if path is None:
        return assets_folder() / BUNDLED
    if isinstance(path, bytes):
        return path
    return path_of("the model", path)


def _prepared(
    session: Session, name: str, decode: Decode, tokenizer: Tokenizer | None, context_length: int | None
) -> tuple[ModelFile, Decoder]:
    """What the file or the caller says about the model, and a decoder for it."""
    if context_length is None or is_model_file(session.metadata):
        info = read_model_file(session, name)
        _check_defaults(info, name)
        if session.model is not None:
            check_sidecar(session.model, info.graph)
        info = _with_tokenizer(info, name, tokenizer, context_length)
        return info, choose_decoder(decode, session, info, name)
    if decode == "cached":
        raise OptionError(f"decode is 'cached', and {name} is no file of edgelm", "leave it out")
    info = _foreign(session, name, tokenizer, context_length)
    return info, ForeignDecoder(session, info.context_length, info.vocab_size)


def _check_defaults(info: ModelFile, name: str) -> None:
    """Raise ModelFileError where the file sets an option to what no call could."""
    try:
        sampling, _, _ = split_options(defaults_from_file(info.generation))
        sampling.check_ids(info.vocab_size)
    except OptionError as error:
        raise ModelFileError(f"{name} sets an unusable default: {error.problem}", EXPORT_AGAIN) from error


def choose_decoder(decode: Decode, session: Session, info: ModelFile, name: str) -> Decoder:
    """The decoder that `decode` asks for. Raises OptionError where the file, called `name`, has no cache."""
    choice("decode", decode, get_args(Decode))
    has_cache = CACHE_LENGTH in session.inputs
    if decode == "cached" and not has_cache:
        raise OptionError(
            f"decode is 'cached', and {name} was exported without a cache", "export it with --kv-cache"
        )
    # From the memory of this process to another device the cache would travel at every step.
    pays = has_cache and (session.provider.startswith("CPU") or cache_device(session) is not None)
    if decode == "cached" or (decode == "auto" and pays):
        return CachedDecoder(session, info.context_length, info.vocab_size)
    return RecomputeDecoder(session, info.context_length, info.vocab_size)


def _with_tokenizer(
    info: ModelFile, name: str, tokenizer: Tokenizer | None, context_length: int | None
) -> ModelFile:
    """`info`, with `tokenizer` where the file brings none."""
    if context_length is not None or (tokenizer is not None and info.tokenizer is not None):
        given = "context_length" if context_length is not None else "tokenizer"
        raise OptionError(f"{given} is given, and {name} brings its own", "leave it out")
    if tokenizer is None:
        return info
    size = _common_size(tokenizer, info.vocab_size, name)
    return replace(info, tokenizer=tokenizer, config={**info.config, VOCAB_SIZE: size})


def _foreign(session: Session, name: str, tokenizer: Tokenizer | None, context_length: int) -> ModelFile:
    """What the caller and the graph say about a language model that has no metadata.

    Raises ModelFileError where the graph is no language model.
    """
    known = (INPUT_IDS, ATTENTION_MASK, POSITION_IDS)
    if unknown := [i for i in session.inputs if i not in known and not i.startswith(PAST)]:
        raise ModelFileError(
            f"{name} wants an input {unknown[0]!r}", f"edgelm feeds {', '.join(known)} and a past"
        )
    logits = session.outputs.get(LOGITS)
    if INPUT_IDS not in session.inputs or logits is None or not isinstance(logits.shape[-1], int):
        raise ModelFileError(
            f"{name} is not a language model with input_ids and logits (batch, sequence, vocabulary)",
            "give a causal language model",
        )
    config = {
        CONTEXT_LENGTH: context_length,
        VOCAB_SIZE: _common_size(tokenizer, logits.shape[-1], name),
    }
    end = tokenizer.end_of_text if tokenizer is not None else None
    return ModelFile(config, tokenizer, {END_IDS: [] if end is None else [end]})


def _common_size(tokenizer: Tokenizer | None, size: int, name: str) -> int:
    """Ids to draw from: vocabularies are often padded, and what cannot be decoded is never to be drawn."""
    if tokenizer is None:
        return size
    if tokenizer.vocab_size > size:
        raise OptionError(
            f"the tokenizer has {tokenizer.vocab_size} ids and {name} {size}",
            "give the model's own tokenizer",
        )
    return tokenizer.vocab_size

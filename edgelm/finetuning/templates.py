"""The chat template that a model gets on request, with the special tokens that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from edgelm.checkpoint import build_model
from edgelm.config import ModelConfig
from edgelm.model import Transformer
from edgelm_runtime.errors import ConfigError
from edgelm_runtime.model_file.interface import CHAT_TEMPLATE, END_IDS
from edgelm_runtime.text.tokenizer import Tokenizer

PLAIN, CHATML = "plain", "chatml"
START, END = "<|im_start|>", "<|im_end|>"
# The format of OpenAI's ChatML, as Qwen and SmolLM2 write it, without a system message of its own.
CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def with_template(
    tokenizer: Tokenizer, generation: Mapping[str, Any], choice: str
) -> tuple[Tokenizer, dict[str, Any]]:
    """Tokenizer and generation defaults with the chat template `choice`: plain, chatml, or a file with one.

    chatml adds its special tokens to the tokenizer where they are not there yet. Raises ConfigError.
    """
    changed = dict(generation)
    if choice == PLAIN:
        changed.pop(CHAT_TEMPLATE, None)
    elif choice != CHATML:
        changed[CHAT_TEMPLATE] = _read(Path(choice).expanduser())
    else:
        tokenizer = with_special_tokens(tokenizer, (START, END))
        changed[CHAT_TEMPLATE] = CHATML_TEMPLATE
        changed[END_IDS] = list(dict.fromkeys([tokenizer.special[END], *changed.get(END_IDS, [])]))
    return tokenizer, changed


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the chat template {path}: {error}", f"give a file, or {PLAIN} or {CHATML}"
        ) from error


def with_special_tokens(tokenizer: Tokenizer, names: tuple[str, ...]) -> Tokenizer:
    """The tokenizer with further special tokens, after all its ids."""
    missing = [name for name in names if name not in tokenizer.special]
    added = {name: tokenizer.vocab_size + index for index, name in enumerate(missing)}
    if not added:
        return tokenizer
    return Tokenizer.from_dict({**tokenizer.to_dict(), "special": {**tokenizer.special, **added}})


def widened(model: Transformer, vocab_size: int) -> Transformer:
    """The model with room for `vocab_size` ids; new ones begin as the mean of all others."""
    if vocab_size <= model.config.vocab_size:
        return model
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    if model.config.tied_head:
        del weights["head.weight"]
    for name in ("token_embedding.weight", "head.weight", "head.bias"):
        if name in weights:
            rows = weights[name]
            mean = rows.mean(dim=0, keepdim=True).expand(vocab_size - len(rows), *rows.shape[1:])
            weights[name] = torch.cat([rows, mean])
    config = ModelConfig.from_dict({**model.config.to_dict(), "vocab_size": vocab_size})
    return build_model(config, weights, "the model")

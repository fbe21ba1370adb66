"""From what a caller gives (text, token ids, messages) to the token ids that a model wants to see."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.keywords import Options
from edgelm_runtime.text.chat_template import PLAIN_STOP, encode_chat
from edgelm_runtime.validation import check_prompt, shown

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids
    from edgelm_runtime.model_file.metadata import ModelFile
    from edgelm_runtime.text.messages import Message
    from edgelm_runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]


class TemplateOptions(TypedDict, total=False):
    """What `LanguageModel.chat_prompt` takes by name."""

    tools: Sequence[Mapping[str, Any]] | None
    """JSON schemas of functions that the model may call."""
    template_options: Mapping[str, Any] | None
    """Further variables of the chat template, such as `enable_thinking`."""
    continue_final_message: bool
    """Go on with the last message, an answer that was begun, instead of asking for a new one."""


TEMPLATE_OPTIONS = tuple(TemplateOptions.__annotations__)


class ChatOptions(Options, TemplateOptions, total=False):
    """What `LanguageModel.chat` and `stream_chat` take by name."""


class Prompts:
    """Prompts for one model: its tokenizer, its begin and end tokens, its chat template."""

    def __init__(self, info: ModelFile) -> None:
        self._info = info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises OptionError for a model that takes and gives ids only."""
        if self._info.tokenizer is None:
            raise OptionError("this model has no tokenizer", "give token ids, or export it with --tokenizer")
        return self._info.tokenizer

    def encode(self, prompt: Any, allowed_special: Collection[str] | str = ()) -> Ids:
        """Token ids (T,) of a text or of token ids, T at least 1.

        Text gets the model's begin token where it has one; an empty text becomes that token, or end-of-text.
        Raises OptionError for an empty prompt where the model has neither.
        """
        if not isinstance(prompt, str):
            return check_prompt(prompt, self._info.vocab_size)
        ids = [*self._begin(), *self.tokenizer.encode(prompt, allowed_special)]
        if not ids:
            bos_id = self._info.bos_id
            start = bos_id if bos_id is not None else self.tokenizer.end_of_text
            if start is None:
                raise OptionError("the prompt is empty and this model has no begin token", "give some text")
            ids = [start]
        return np.asarray(ids, np.int64)

    def encode_whole(self, text: Any, prefix: str = "") -> Ids:
        """Token ids (T,) of a text that is not to be continued, cut to what the model sees: `prefix`, the text, and
        the token that the model's tokenizer puts after a text, where it does.

        Token ids are taken as they are. Raises OptionError for them with a prefix.
        """
        if not isinstance(prefix, str):
            raise OptionError(f"prefix is {shown(prefix)}", "give text")
        if not isinstance(text, str):
            if prefix:
                raise OptionError("prefix is given, and token ids", "give texts, or leave the prefix out")
            return self.encode(text)[: self._info.context_length]
        end = [] if self._info.final_id is None else [self._info.final_id]
        ids = self.encode(prefix + text)[: max(1, self._info.context_length - len(end))]
        return np.concatenate((ids, np.asarray(end, np.int64)))[: self._info.context_length]

    def chat(self, messages: Sequence[Message], options: TemplateOptions) -> list[int]:
        """Token ids of a conversation. A template says itself where the begin token goes."""
        return self._render(messages, True, options)

    def whole_chat(self, messages: Sequence[Message], options: TemplateOptions) -> list[int]:
        """Token ids of a conversation that is over: nothing asks for another answer."""
        return self._render(messages, False, options)

    def _render(self, messages: Sequence[Message], asks: bool, options: TemplateOptions) -> list[int]:
        template = self._info.chat_template
        ids = encode_chat(messages, template, self.tokenizer, self._special_texts(), asks, **options)
        return ids if template is not None else [*self._begin(), *ids]

    def split_chat_options(self, options: ChatOptions) -> tuple[TemplateOptions, Options]:
        """The options of the prompt and those of generation."""
        prompt: Any = {name: value for name, value in options.items() if name in TEMPLATE_OPTIONS}
        rest: Any = {name: value for name, value in options.items() if name not in TEMPLATE_OPTIONS}
        if self._info.chat_template is None:
            # Such a model would go on to write the user's next turn.
            rest.setdefault("stop", [PLAIN_STOP])
        return prompt, rest

    def _begin(self) -> list[int]:
        return [] if self._info.begin_id is None else [self._info.begin_id]

    def _special_texts(self) -> dict[str, str]:
        """The variables of a chat template that hold special tokens."""
        by_id = {token_id: text for text, token_id in self.tokenizer.special.items()}
        bos, ends = self._info.bos_id, self._info.end_ids
        return {
            "bos_token": by_id.get(bos, "") if bos is not None else "",
            "eos_token": by_id.get(ends[0], "") if ends else "",
        }


def is_single(prompt: Any) -> bool:
    """Whether `prompt` is one text or one list of ids, and not a list of them. Raises OptionError for neither.

    Anything that numpy takes for an array is one, a tensor of PyTorch for instance.
    """
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "__array__"):
        return np.ndim(prompt) <= 1
    if isinstance(prompt, Mapping) or not hasattr(prompt, "__len__"):
        raise OptionError(f"the prompt is {shown(prompt)}"[:200], "give text, token ids, or a list of either")
    return bool(len(prompt)) and all(
        (not isinstance(item, str) and not hasattr(item, "__len__")) or getattr(item, "ndim", 1) == 0
        for item in prompt
    )

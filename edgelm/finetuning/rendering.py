"""A conversation as token ids, exactly as the runtime renders it, and which of them the model is to learn.

An answer is what follows the prompt that the runtime would make at that point: the conversation before it is rendered
with the template's generation prompt, and the conversation with it without. Where each of those prompts is a
beginning of the whole, a conversation is one row. Templates exist that show earlier answers in another form than the
last one (without its thinking); there each answer is a row of its own, as the runtime would see it.

A template that marks the answers itself, with `{% generation %}`, is taken at its word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgelm.finetuning.chats import Messages
from edgelm_runtime.text.chat_template import encode_chat, render_chat
from edgelm_runtime.text.tokenizer import Tokenizer

Tools = list[dict[str, Any]] | None
# Around what `{% generation %}` marks: characters that no text holds.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_TAG = r"\{%[-+]?\s*generation\s*(?:-%\}\s*|\+?%\}\n?)"
_END_TAG = r"(?:(?<=\n)[ \t]*|\s*(?=\{%-)|)\{%[-+]?\s*endgeneration\s*[-+]?%\}"


@dataclass(frozen=True)
class Row:
    """Token ids, and for each whether the model is to learn it."""

    ids: list[int]
    counted: list[bool]


@dataclass(frozen=True)
class Renderer:
    """Renders conversations for one model. `everything` counts all tokens instead of the answers'."""

    tokenizer: Tokenizer
    template: str | None
    special: dict[str, str]
    begin: tuple[int, ...]
    ends: tuple[int, ...]
    everything: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, generation: Mapping[str, Any], everything: bool = False) -> Renderer:
        """The renderer for a model with these generation defaults."""
        texts = {token_id: text for text, token_id in tokenizer.special.items()}
        ends, bos = tuple(generation.get("end_ids", ())), generation.get("bos_id")
        template = generation.get("chat_template")
        special = {
            "bos_token": texts.get(bos, "") if bos is not None else "",
            "eos_token": texts.get(ends[0], "") if ends else "",
        }
        # A template says itself where the begin token goes.
        begin = (bos,) if template is None and generation.get("add_bos") and bos is not None else ()
        return cls(tokenizer, template, special, begin, ends, everything)

    def prompt(self, messages: Messages, tools: Tools = None) -> list[int]:
        """What the runtime gives the model for it to answer."""
        return self._encode(messages, tools, True)

    def rows(self, messages: Messages, tools: Tools = None) -> list[Row]:
        """The rows of a conversation. Raises OptionError where the template refuses it."""
        last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        messages = messages[: last + 1]
        if self.template and re.search(r"\{%[-+]?\s*generation\b", self.template):
            marked = self._marked(messages, tools)
            if marked is not None:
                return [marked]
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        whole = self._encode(messages, tools, False)
        spans = [self._span(whole, messages[: index + 1], tools) for index in answers]
        if all(span is not None for span in spans) and (len(answers) == 1 or self._each_ends(whole, spans)):
            return [self._row(whole, spans)]
        return [self._own_row(messages[: index + 1], tools) for index in answers]

    def _encode(self, messages: Messages, tools: Tools, prompt: bool) -> list[int]:
        options: dict[str, Any] = {"tools": tools} if tools else {}
        ids = encode_chat(messages, self.template, self.tokenizer, self.special, prompt, **options)
        return [*self.begin, *ids]

    def _span(self, whole: list[int], messages: Messages, tools: Tools) -> tuple[int, int] | None:
        """From where to where in `whole` the last of `messages`, an answer, goes; None where it is shown otherwise."""
        before = messages[:-1]
        prompt = self._encode(before, tools, True) if before else list(self.begin)
        end = self._answer_end(whole, len(prompt))
        own = self._encode(messages, tools, False)
        if whole[: len(prompt)] != prompt or whole[:end] != own[:end]:
            return None
        return len(prompt), end

    def _answer_end(self, ids: list[int], start: int) -> int:
        """After the first end token from `start` on, or at the end."""
        return next((index + 1 for index in range(start, len(ids)) if ids[index] in self.ends), len(ids))

    def _each_ends(self, whole: list[int], spans: Sequence[tuple[int, int] | None]) -> bool:
        """Whether every answer has an end token of its own, before the next begins."""
        kept = [span for span in spans if span is not None]
        nexts = [start for start, _ in kept[1:]] + [len(whole) + 1]
        return all(
            whole[end - 1] in self.ends and end <= after for (_, end), after in zip(kept, nexts, strict=True)
        )

    def _own_row(self, messages: Messages, tools: Tools) -> Row:
        """A row that learns the last answer alone."""
        whole, prompt = self._encode(messages, tools, False), self._encode(messages[:-1], tools, True)
        start = next((i for i, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), len(prompt))
        return self._row(whole, [(start, self._answer_end(whole, start))])

    def _row(self, whole: list[int], spans: Sequence[tuple[int, int] | None]) -> Row:
        """The row with the answers at `spans` counted; the model's end token is added where the template has none."""
        counted = [self.everything] * len(whole)
        for start, end in filter(None, spans):
            counted[start:end] = [True] * (end - start)
        last = spans[-1]
        if last is not None and last[1] == len(whole) and whole[-1] not in self.ends and self.ends:
            return Row([*whole, self.ends[0]], [*counted, True])
        return Row(whole, counted)

    def _marked(self, messages: Messages, tools: Tools) -> Row | None:
        """The row with what the template marks; None where its tokens cannot be told apart by their bytes."""
        assert self.template is not None
        template = re.sub(_TAG, lambda match: match[0] + f'{{{{ "{_OPEN}" }}}}', self.template)
        template = re.sub(_END_TAG, lambda match: f'{{{{ "{_CLOSE}" }}}}' + match[0], template)
        options: dict[str, Any] = {"tools": tools} if tools else {}
        text = render_chat(messages, template, self.special, False, **options)
        ids = self._encode(messages, tools, False)
        parts = re.split(f"([{_OPEN}{_CLOSE}])", text)
        plain = "".join(part for part in parts if part not in (_OPEN, _CLOSE))
        if self.tokenizer.decode_bytes(ids) != plain.encode():
            return None
        inside, marked = False, bytearray()
        for part in parts:
            if part in (_OPEN, _CLOSE):
                inside = part == _OPEN
            else:
                marked += bytes([inside]) * len(part.encode())
        counted, at = [], 0
        for token_id in ids:
            size = len(self.tokenizer.decode_bytes([token_id]))
            counted.append(self.everything or any(marked[at : at + size]))
            at += size
        return Row(ids, counted) if any(counted) else None

"""POST /v1/completions: a text goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from edgelm_runtime.generation.results import Piece
from edgelm_runtime.language_model import LanguageModel
from edgelm_server.answers import FINISH_REASONS, Envelope, usage
from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields
from edgelm_server.logprobs import (
    MOST_ALTERNATIVES,
    Scored,
    ShownTokens,
    completion_logprobs,
    score_prompt,
)
from edgelm_server.options import new_tokens, take_count, take_options, take_usage_wish
from edgelm_server.replies import Event, EventStream, json_reply
from edgelm_server.service import Service, service_of
from edgelm_server.texts import Job, Texts

DEFAULT_TOKENS = 16  # as OpenAI's


@dataclass
class Choice:
    """One text of the answer. It begins with what `echo` puts in front, and with its tokens where they are scored."""

    text: str
    tokens: list[Scored]
    made: ShownTokens
    finish_reason: str | None = None

    def add(self, piece: Piece) -> list[Scored]:
        """Take in a piece; gives the tokens that are shown with its text."""
        self.text += piece.text
        self.finish_reason = FINISH_REASONS.get(piece.finish_reason)
        self.made.add(piece)
        tokens = self.made.until(len(self.text), piece.finish_reason is not None)
        self.tokens += tokens
        return tokens


@dataclass
class Completion:
    """A request, understood."""

    jobs: list[Job]
    beginnings: list[str]
    samples: int
    echo: bool
    alternatives: int | None
    stream: bool
    include_usage: bool


async def completions(request: Request) -> Response:
    service = service_of(request)
    fields = await service.read(request)
    asked = await run_sync(read_completion, fields, service)
    envelope = Envelope(service, "cmpl", "text_completion")
    texts = Texts(service.engine, asked.jobs, service.metrics)
    if not asked.stream:
        return await json_reply(request, lambda: _whole(service, envelope, asked, texts))
    try:
        await texts.start()
    except BaseException:
        texts.cancel()
        raise
    return EventStream(_chunks(service, envelope, asked, texts), service.settings.max_time)


def read_completion(fields: Fields, service: Service) -> Completion:
    """Understand the fields. Raises ApiError and OptionError for what cannot be done."""
    lm = service.lm
    options = take_options(fields)
    samples = take_count(fields)
    wanted = fields.whole("max_tokens", 0, 1 << 32)
    alternatives = fields.whole("logprobs", 0, MOST_ALTERNATIVES)
    stream = fields.flag("stream")
    allowed_special = fields.take("allowed_special", ())
    prompts = list_prompts(fields)
    encoded = [lm.encode_prompt(prompt, allowed_special) for prompt in prompts]
    asked = Completion(
        jobs=[],
        beginnings=[_text(lm, prompt) for prompt in prompts],
        samples=samples,
        echo=fields.flag("echo"),
        alternatives=alternatives,
        stream=stream,
        include_usage=take_usage_wish(fields, stream),
    )
    fields.refuse("suffix", unless=("",))
    fields.refuse("best_of", unless=(samples,))
    fields.finish()
    for ids in encoded:
        count = new_tokens(
            len(ids), lm.info.context_length, DEFAULT_TOKENS if wanted is None else wanted, "prompt"
        )
        own = {**options, "max_new_tokens": count, "max_time": service.settings.max_time}
        if alternatives is not None:
            own["logprobs"] = alternatives
        asked.jobs += [Job(ids, own, sample) for sample in range(samples)]
    return asked


def list_prompts(fields: Fields, name: str = "prompt") -> list[Any]:
    """The texts and lists of ids in a field that may hold one of them or several."""
    value = fields.take(name)
    if value is None:
        raise ApiError(400, f"{name} is missing; give a text, token ids, or a list of either", param=name)
    prompts = value if isinstance(value, list) and not all(isinstance(v, int) for v in value) else [value]
    if not all(isinstance(prompt, (str, list)) and prompt != [] for prompt in prompts):
        raise fields.wrong(name, value, "give a text, token ids, or a list of either")
    return prompts


def _text(lm: LanguageModel, prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else lm.tokenizer.decode(prompt)


async def _whole(service: Service, envelope: Envelope, asked: Completion, texts: Texts) -> Event:
    try:
        await texts.start()
        choices = await _choices(service, asked)
        made = 0
        async for index, piece in texts.pieces():
            choices[index].add(piece)
            made += piece.token_id is not None
    finally:
        texts.cancel()
    service.note_text(*(choice.text for choice in choices))
    return envelope(
        [
            _choice(service, asked, index, choice, choice.text, choice.tokens)
            for index, choice in enumerate(choices)
        ],
        usage=usage(asked.jobs, asked.samples, made),
    )


async def _chunks(
    service: Service, envelope: Envelope, asked: Completion, texts: Texts
) -> AsyncGenerator[Event, None]:
    extra = {"usage": None} if asked.include_usage else {}
    made = 0
    try:
        choices = await _choices(service, asked)
        for index, choice in enumerate(choices):
            if asked.echo:
                yield envelope([_choice(service, asked, index, choice, choice.text, choice.tokens)], **extra)
        async for index, piece in texts.pieces():
            choice = choices[index]
            tokens = choice.add(piece)
            made += piece.token_id is not None
            if piece.text or tokens or choice.finish_reason:
                yield envelope([_choice(service, asked, index, choice, piece.text, tokens)], **extra)
        service.note_text(*(choice.text for choice in choices))
        if asked.include_usage:
            yield envelope([], usage=usage(asked.jobs, asked.samples, made))
    finally:
        texts.cancel()


async def _choices(service: Service, asked: Completion) -> list[Choice]:
    """The choices before their first token; prompts that are echoed with log-probabilities are scored here."""
    choices = []
    for number, beginning in enumerate(asked.beginnings):
        tokens: list[Scored] = []
        text = beginning if asked.echo else ""
        job = asked.jobs[number * asked.samples]
        if asked.echo and asked.alternatives is not None:
            tokens = await service.aside(score_prompt, service.lm, job.prompt, text, asked.alternatives)
        for _ in range(asked.samples):
            made = ShownTokens(service.lm.tokenizer, job, len(text), with_end=True)
            choices.append(Choice(text, list(tokens), made))
    return choices


def _choice(
    service: Service, asked: Completion, index: int, choice: Choice, text: str, tokens: Sequence[Scored]
) -> dict[str, Any]:
    scored = asked.alternatives is not None
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(service.lm.tokenizer, tokens) if scored else None,
        "finish_reason": choice.finish_reason,
    }

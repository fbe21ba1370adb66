"""Conversations to prompts: the model's own template where it has one, a plain one where it has none.

Templates that models bring along are Jinja programs; they run in Jinja's sandbox, with the functions that
the Hugging Face convention promises them (https://huggingface.co/docs/transformers/chat_templating). Jinja is
an extra, since models without such a template do without it.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgelm_runtime.errors import MissingExtraError, OptionError
from edgelm_runtime.text.tokenizer import Tokenizer

Message = Mapping[str, str]
ROLES = ("system", "user", "assistant", "tool")
PLAIN_STOP = "\nUser:"
PRIVATE_USE = 0xF0000


def render_chat(
    messages: Sequence[Message],
    template: str | None,
    special: Mapping[str, str] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt for `messages`, each with `role` and `content`; `special` gives `bos_token`, `eos_token`.

    Raises OptionError for messages of another form and where the template refuses them, MissingExtraError
    where a template needs Jinja.
    """
    _check(messages)
    if template is None:
        return _plain(messages, add_generation_prompt)
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        raise MissingExtraError("jinja2", "chat") from error
    variables = {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": add_generation_prompt,
        # Templates tell "none" from "undefined" and expect the former.
        "tools": None,
        "documents": None,
        **(special or {}),
    }
    try:
        text: str = _environment().from_string(template).render(variables)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise OptionError(f"the model's chat template refuses these messages: {error}") from error
    return text


def _environment() -> Any:
    """Jinja's sandbox with what the convention promises a template."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's part for training, and changes no text."""

        tags = {"generation"}  # noqa: RUF012  (Jinja reads it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def encode_chat(
    messages: Sequence[Message],
    template: str | None,
    tokenizer: Tokenizer,
    special: Mapping[str, str] | None = None,
) -> list[int]:
    """Token ids of the prompt for `messages`. Special-token text inside a message is ordinary text: only the
    template's own becomes special tokens, so no message can pretend to be another role's.

    Raises what `render_chat` raises.
    """
    _check(messages)
    written = "\0".join(message["content"] for message in messages)
    # A stand-in from the private use area for each special token's text, until the template has been filled.
    stand_ins = {chr(PRIVATE_USE + i): text for i, text in enumerate(tokenizer.special) if text in written}
    for stand_in, text in sorted(stand_ins.items(), key=lambda pair: -len(pair[1])):
        messages = [
            {**message, "content": message["content"].replace(text, stand_in)} for message in messages
        ]
    rendered = render_chat(messages, template, special)
    parts = re.split(f"([{''.join(stand_ins)}])", rendered) if stand_ins else [rendered]
    ids: list[int] = []
    for part in parts:
        ids += tokenizer.encode(stand_ins[part]) if part in stand_ins else tokenizer.encode(part, "all")
    return ids


def _check(messages: Sequence[Message]) -> None:
    if isinstance(messages, (str, Mapping)) or not messages:
        raise OptionError(
            f"messages is {messages!r}", 'give a list such as [{"role": "user", "content": "Hi"}]'
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise OptionError(f"a message is {message!r}", "give role and content, both text")
        if message.get("role") not in ROLES:
            raise OptionError(
                f"a message has role {message.get('role')!r}", f"choose one of {', '.join(ROLES)}"
            )


def _plain(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """Names and colons, the form that a model without a template is most likely to know."""
    parts = [
        message["content"]
        if message["role"] == "system"
        else f"{message['role'].capitalize()}: {message['content']}"
        for message in messages
    ]
    return "\n".join([*parts, "Assistant:"] if add_generation_prompt else parts)


def _tojson(value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)

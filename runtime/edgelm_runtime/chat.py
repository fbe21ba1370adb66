"""Conversations to prompts: the model's own template where it has one, a plain one where it has none.

Templates that models bring along are Jinja programs; they run in Jinja's sandbox, with the functions that
the Hugging Face convention promises them (https://huggingface.co/docs/transformers/chat_templating). Jinja is
an extra, since models without such a template do without it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgelm_runtime.errors import MissingExtraError, OptionError

Message = Mapping[str, str]
ROLES = ("system", "user", "assistant", "tool")
PLAIN_STOP = "\nUser:"


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
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError("jinja2", "chat") from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        text: str = environment.from_string(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **(special or {}),
        )
    except TemplateError as error:
        raise OptionError(f"the model's chat template refuses these messages: {error}") from error
    return text


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


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)

"""Conversations to prompts: the model's own template where it has one, names and colons where it has none.

The ids are those of transformers' `apply_chat_template(tokenize=True)`, with one difference: a special token that a
message spells is ordinary text, so that no message can pretend to be another role's. Only what an answer itself may
hold (`[/THINK]`, a tool call) stays a special token in an earlier answer; what frames messages does not.

Jinja, which runs templates, is an extra, since models without such a template do without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import MissingExtraError, OptionError
from edgelm_runtime.text.messages import ROLES, Message, as_parts, checked, joined_parts, plain, text_size
from edgelm_runtime.text.stand_ins import StandIns
from edgelm_runtime.validation import shown

if TYPE_CHECKING:
    from jinja2 import Template

    from edgelm_runtime.text.tokenizer import Tokenizer

PLAIN_STOP = "\nUser:"
# Variables that are not for a caller to set.
RESERVED = ("messages", "add_generation_prompt", "tools")
PROBE = "probe text"


def render_chat(
    messages: Sequence[Message],
    template: str | None,
    special: Mapping[str, str] | None = None,
    add_generation_prompt: bool = True,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
) -> str:
    """The prompt for `messages`, each with `role` and `content`; `special` gives `bos_token`, `eos_token`.

    `tools` are JSON schemas of functions, `template_options` further variables of the template (`enable_thinking`,
    `documents`, ...). `continue_final_message` leaves the last answer open, for the model to go on with.

    Raises OptionError for messages of another form, where the template refuses them or takes no such variable, and
    where it needs more time or memory than it may have; MissingExtraError where it needs Jinja.
    """
    conversation = checked(messages)
    if continue_final_message:
        add_generation_prompt = False
        conversation[-1] = _marked(conversation[-1], mark := StandIns(conversation).new())
    if template is None:
        if tools is not None or template_options:
            raise OptionError("tools or template_options are given, and this model has no chat template")
        text = _plain(conversation, add_generation_prompt)
    else:
        options = _options(template, tools, template_options)
        conversation = _in_form(template, conversation)
        text = _render(template, conversation, {**(special or {}), **options}, add_generation_prompt)
    return _cut_at(text, mark) if continue_final_message else text


def encode_chat(
    messages: Sequence[Message],
    template: str | None,
    tokenizer: Tokenizer,
    special: Mapping[str, str] | None = None,
    add_generation_prompt: bool = True,
    **options: Any,
) -> list[int]:
    """Token ids of the prompt for `messages`; `options` are the keyword arguments of `render_chat`.

    Raises what `render_chat` raises.
    """
    conversation = checked(messages, tokenizer.special)
    if template is None:
        text = render_chat(conversation, None, special, add_generation_prompt, **options)
        return tokenizer.encode(text)
    names = frozenset(tokenizer.special)
    framing = _framing(template, tuple(sorted((special or {}).items())), names)
    hiding = StandIns([conversation, plain(options)])

    def hidden(message: Mapping[str, Any]) -> dict[str, Any]:
        return {
            field: value
            if field == "role"
            else hiding.put(value, framing if _own_words(message, field) else names)
            for field, value in message.items()
        }

    for field in ("tools", "template_options"):
        if options.get(field) is not None:
            options[field] = hiding.put(plain(options[field]), names)
    conversation = [hidden(message) for message in conversation]
    text = render_chat(conversation, template, special, add_generation_prompt, **options)
    return tokenizer.encode(hiding.found_again(text), "all", stand_ins=hiding.meant)


def _own_words(message: Mapping[str, Any], field: str) -> bool:
    """Whether a field holds what the model said, special tokens included."""
    return message["role"] == "assistant" and field in ("content", "reasoning_content", "thinking")


def _options(
    template: str, tools: Sequence[Mapping[str, Any]] | None, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The variables that a caller sets. Raises OptionError for one that the template does not read."""
    # Templates tell "none" from "undefined" and expect the former.
    options: dict[str, Any] = {"tools": None, "documents": None}
    if tools is not None:
        if isinstance(tools, (str, Mapping)) or not all(isinstance(tool, Mapping) for tool in tools):
            raise OptionError("tools are not a list of JSON schemas", "give a mapping for each function")
        options["tools"] = plain(list(tools))
    if more is not None and not isinstance(more, Mapping):
        raise OptionError(f"template_options is {shown(more)}", "give a mapping of names to values")
    for name, value in (more or {}).items():
        if name in RESERVED:
            raise OptionError(f"template_options sets {name}", "give it as an argument of its own")
        options[str(name)] = plain(value)
    known = _variables(template)
    given = [*(more or {}), *(["tools"] if tools is not None else [])]
    if unknown := [name for name in given if name not in known]:
        read = ", ".join(sorted(known - {*RESERVED[:2], "bos_token", "eos_token"})) or "none"
        raise OptionError(f"the model's chat template takes no {shown(unknown[0])}", f"what it takes: {read}")
    return options


def _marked(message: dict[str, Any], mark: str) -> dict[str, Any]:
    """The last message with a mark after its text, where the prompt is to end."""
    content = message.get("content")
    if message["role"] != "assistant" or not content:
        raise OptionError("there is no answer to continue", "the last message must be the assistant's")
    # Whether the space is there after rendering shows whether the template trims its messages.
    if isinstance(content, str):
        return {**message, "content": f"{content}{mark} "}
    last = content[-1]
    return {**message, "content": [*content[:-1], {**last, "text": f"{last['text']}{mark} "}]}


def _cut_at(text: str, mark: str) -> str:
    at = text.rfind(mark)
    if at < 0:
        raise OptionError(
            "the model's chat template leaves the last answer out", "ask for a new answer instead"
        )
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


def _in_form(template: str, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Contents as text or as lists of parts, as the template reads them."""
    if any(isinstance(message.get("content"), list) for message in conversation):
        if not _shows(template, [{"type": "text", "text": PROBE}]):
            return [joined_parts(message) for message in conversation]
    elif not _shows(template, PROBE) and _shows(template, [{"type": "text", "text": PROBE}]):
        return [as_parts(message) for message in conversation]
    return conversation


def _shows(template: str, content: Any) -> bool:
    """Whether the template writes such a content, and not the form that it has."""
    return _shows_json(template, json.dumps(content))


@lru_cache(maxsize=32)
def _shows_json(template: str, content: str) -> bool:
    message = {"role": "user", "content": json.loads(content)}
    try:
        text = _render(template, [message], {"tools": None, "documents": None}, True)
    except _UnusableTemplateError:
        raise
    except OptionError:
        return False
    return PROBE in text and f"'{PROBE}'" not in text and f'"{PROBE}"' not in text


@lru_cache(maxsize=32)
def _framing(template: str, special: tuple[tuple[str, str], ...], names: frozenset[str]) -> frozenset[str]:
    """The special tokens `names` that the template writes around messages, and those that begin and end texts.

    All of them where the template refuses every conversation that is tried.
    """
    system, user, answer = ({"role": role, "content": PROBE} for role in ("system", "user", "assistant"))
    variables = {**dict(special), "tools": None, "documents": None}
    for talk in ([system, user, answer, user], [user, answer, user], [user]):
        try:
            text = _render(template, _in_form(template, talk), variables, False)
        except _UnusableTemplateError:
            raise
        except OptionError:
            continue
        return frozenset(name for name in names if name in text) | ({*dict(special).values()} - {""})
    return names


class _UnusableTemplateError(OptionError):
    """A template that is no template, or that never ends, whatever the messages are."""


def _render(
    template: str,
    conversation: list[dict[str, Any]],
    variables: Mapping[str, Any],
    add_generation_prompt: bool,
) -> str:
    program = _program(template)[0]
    from edgelm_runtime.text.template_budget import LimitError
    from edgelm_runtime.text.template_sandbox import render

    given = {"messages": conversation, "add_generation_prompt": add_generation_prompt, **variables}
    try:
        return render(program, given, text_size(given))
    except (LimitError, RecursionError, MemoryError) as error:
        raise _UnusableTemplateError(f"the model's chat template is not usable: {_about(error)}") from error
    except Exception as error:  # a template is a program, and can raise anything
        raise OptionError(f"the model's chat template refuses these messages: {_about(error)}") from error


def _variables(template: str) -> frozenset[str]:
    """Names that the template reads and does not set."""
    return _program(template)[1]


@lru_cache(maxsize=32)
def _program(template: str) -> tuple[Template, frozenset[str]]:
    try:
        from edgelm_runtime.text.template_sandbox import compiled
    except ImportError as error:
        raise MissingExtraError("jinja2", "chat") from error
    try:
        return compiled(template)
    except Exception as error:
        raise _UnusableTemplateError(f"the model's chat template is not usable: {_about(error)}") from error


def _about(error: Exception) -> str:
    """What went wrong, in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _plain(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    """Names and colons, the form that a model without a template is most likely to know."""
    parts = []
    for message in map(joined_parts, messages):
        if message["role"] not in ROLES:
            raise OptionError(
                f"a message has role {shown(message['role'])}", f"choose one of {', '.join(ROLES)}"
            )
        content = message.get("content", "")
        unnamed = message["role"] in ("system", "developer")
        parts.append(content if unnamed else f"{message['role'].capitalize()}: {content}")
    return "\n".join([*parts, "Assistant:"] if add_generation_prompt else parts)

"""POST /tokenize and /detokenize, GET /tokenizer_info: vLLM's, which lm-evaluation-harness asks for."""

from __future__ import annotations

from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgelm_runtime.validation import check_prompt
from edgelm_server.chat_request import take_prompt
from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields
from edgelm_server.logprobs import token_text
from edgelm_server.service import Service, service_of
from edgelm_server.tools import take_tools


async def tokenize(request: Request) -> Response:
    """Ids of `prompt`, or of `messages`. Special tokens' text is read as them, as in vLLM and llama.cpp."""
    service = service_of(request)
    fields = await service.read(request)
    return JSONResponse(await run_sync(_tokens, service, fields))


def _tokens(service: Service, fields: Fields) -> dict[str, Any]:
    lm = service.lm
    prompt = fields.text("prompt")
    with_begin = fields.flag("add_special_tokens", True)
    with_texts = fields.flag("return_token_strs")
    if prompt is None:
        ids = take_prompt(fields, service, take_tools(fields))
    elif with_begin and prompt:
        ids = lm.encode_prompt(prompt, "all").tolist()
    else:
        ids = lm.tokenizer.encode(prompt, "all")
    fields.finish()
    texts = [token_text(lm.tokenizer, token_id) for token_id in ids] if with_texts else None
    return {
        "count": len(ids),
        "max_model_len": lm.info.context_length,
        "tokens": ids,
        "token_strs": texts,
    }


async def detokenize(request: Request) -> Response:
    """The text of `tokens`, special ones included."""
    service = service_of(request)
    fields = await service.read(request)
    tokens = fields.list("tokens")
    fields.finish()
    if tokens is None:
        raise ApiError(400, "tokens is missing; give a list of token ids", param="tokens")
    ids = check_prompt(tokens, service.lm.info.vocab_size).tolist() if tokens else []
    return JSONResponse({"prompt": await run_sync(service.lm.tokenizer.decode, ids)})


async def tokenizer_info(request: Request) -> Response:
    """What there is to know of the tokenizer, under the names of Hugging Face's tokenizer_config.json."""
    info = service_of(request).lm.info
    special = info.tokenizer.special if info.tokenizer is not None else {}
    texts = {token_id: text for text, token_id in special.items()}
    return JSONResponse(
        {
            "tokenizer_class": "edgelm",
            "vocab_size": info.vocab_size,
            "model_max_length": info.context_length,
            "add_bos_token": info.begin_id is not None,
            "bos_token": None if info.bos_id is None else texts.get(info.bos_id),
            "eos_token": texts.get(info.end_ids[0]) if info.end_ids else None,
            "pad_token": None,
            "unk_token": None,
            "chat_template": info.chat_template,
        }
    )

"""Models, embeddings and the tokenizer."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest
from openai import OpenAI
from servers import serving

import edgelm
from edgelm_runtime.language_model import LanguageModel

DATA = Path(__file__).parents[1] / "runtime/data"


@pytest.fixture(scope="module")
def tiny() -> Iterator[tuple[LanguageModel, OpenAI]]:
    """A model file with the output that vectors come from."""
    with edgelm.load(DATA / "tiny.onnx") as lm, serving(lm) as url:
        yield lm, OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)


def test_models(client: OpenAI, lm: LanguageModel) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["python", "other-name"]
    for model in (*models, client.models.retrieve("python")):
        values = model.model_dump()
        assert values["context_length"] == values["max_model_len"] == lm.info.context_length
        assert (values["object"], values["owned_by"]) == ("model", "edgelm")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/else")


def test_vectors_are_the_runtimes(tiny: tuple[LanguageModel, OpenAI]) -> None:
    lm, client = tiny
    texts = ["one text", "another one"]
    expected = lm.embed(texts)
    for form in ("float", "base64", openai.omit):  # left out, the client asks for base64 and decodes it
        answer = client.embeddings.create(model="model", input=texts, encoding_format=form)  # type: ignore[arg-type]
        vectors = [
            np.frombuffer(base64.b64decode(entry.embedding), np.float32)
            if isinstance(entry.embedding, str)
            else entry.embedding
            for entry in answer.data
        ]
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        assert [entry.index for entry in answer.data] == [0, 1]
    ids = lm.encode_prompt("one text").tolist()
    assert answer.usage.prompt_tokens == len(ids) + len(lm.encode_prompt("another one"))
    one = client.embeddings.create(model="model", input=ids, encoding_format="float", dimensions=16)
    np.testing.assert_allclose(one.data[0].embedding, expected[0], atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "x" * 30}, "input 0 has 30 tokens and the context 24"),
        ({"dimensions": 8}, "dimensions is 8; the model's vectors have 16"),
        ({"encoding_format": "hex"}, "encoding_format is"),
        ({"input": []}, "input is []"),
        ({"input": None}, "input is missing"),
        ({"input": ["a"] * 2049}, "at most 2048"),
        ({"prompt": "a"}, "prompt is not supported"),
    ],
)
def test_vectors_that_cannot_be_made(
    tiny: tuple[LanguageModel, OpenAI], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tiny[1].post("/embeddings", cast_to=object, body={"model": "model", "input": "a", **fields})
    assert message in caught.value.message


def test_a_file_without_vectors_says_how_to_get_them(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="python", input="a")
    assert "export it with --outputs hidden" in caught.value.message


def post(url: str, path: str, body: object) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(
        "POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None
    )
    response = connection.getresponse()
    assert response.status == 200, response.read()
    return json.load(response)


def test_the_tokenizer(url: str, lm: LanguageModel) -> None:
    text = "def f():\n    return 'ü'"
    ids = lm.tokenizer.encode(text)
    answer = post(url, "/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True})
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (ids, len(ids), 512)
    assert len(answer["token_strs"]) == len(ids)
    assert post(url, "/tokenize", {"prompt": text})["tokens"] == lm.encode_prompt(text).tolist()
    assert post(url, "/tokenize", {"prompt": "", "add_special_tokens": False})["tokens"] == []
    assert post(url, "/detokenize", {"tokens": ids})["prompt"] == text
    assert post(url, "/detokenize", {"tokens": []})["prompt"] == ""
    messages = [{"role": "user", "content": "Hi"}]
    assert post(url, "/tokenize", {"messages": messages})["tokens"] == lm.chat_prompt(messages)
    info = post(url, "/tokenizer_info", None)
    assert (
        info["eos_token"] == "<|endoftext|>" and info["chat_template"] == lm.info.generation["chat_template"]
    )
    # What evaluations do to learn the end token's id.
    end = post(url, "/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})["tokens"]
    assert end == list(lm.info.end_ids)

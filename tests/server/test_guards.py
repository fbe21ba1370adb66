"""What keeps strangers out, and what is counted and logged."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai import OpenAI
from servers import serving

from edgelm_runtime.language_model import LanguageModel
from edgelm_server import Settings

KEY = "not a secret: ü"
BODY = {"prompt": "a", "max_tokens": 1}


def ask(
    url: str, path: str, body: object = None, method: str | None = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON (or text) of a plain request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, dict(response.headers), json.loads(text) if is_json else text


@pytest.fixture(scope="module")
def guarded(lm: LanguageModel) -> Iterator[str]:
    settings = Settings(
        api_key=KEY, allowed_hosts=("model.example",), cors_origins=("https://app.example",), max_body=2000
    )
    with serving(lm, settings) as url:
        yield url


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:80", "192.168.1.7:8080", "LOCALHOST"])
def test_addresses_and_loopback_are_good_hosts(url: str, host: str) -> None:
    assert ask(url, "/v1/models", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "["]
)
def test_a_rebound_name_is_refused(url: str, host: str) -> None:
    status, _, body = ask(url, "/v1/completions", BODY, Host=host)
    assert status == 403 and "--allowed-host" in body["error"]["message"]


def test_a_name_may_be_allowed(guarded: str) -> None:
    assert ask(guarded, "/health", Host="model.example:443")[0] == 200
    assert ask(guarded, "/health", Host="other.example:443")[0] == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://["])
def test_a_page_from_elsewhere_may_not_ask(url: str, origin: str) -> None:
    status, headers, body = ask(url, "/v1/completions", BODY, Origin=origin, Content_Type="text/plain")
    assert status == 403 and "--cors-origin" in body["error"]["message"]
    assert not any(name.lower().startswith("access-control") for name in headers)
    status, headers, _ = ask(
        url, "/v1/completions", method="OPTIONS", Origin=origin, Access_Control_Request_Method="POST"
    )
    assert status == 403 and "access-control-allow-origin" not in headers


def test_the_servers_own_page_may_ask(url: str) -> None:
    assert ask(url, "/v1/completions", BODY, Origin=url)[0] == 200


def test_a_page_may_be_allowed(guarded: str) -> None:
    origin = "https://app.example"
    status, headers, _ = ask(
        guarded, "/v1/completions", method="OPTIONS", Origin=origin, Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )  # fmt: skip
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    status, headers, _ = ask(guarded, "/v1/models", Origin=origin, Authorization=bearer())
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    assert ask(guarded, "/v1/models", Origin="https://other.example", Authorization=bearer())[0] == 403


def bearer(key: str = KEY) -> str:
    return f"Bearer {key}".encode().decode("latin-1")


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/models", "/tokenizer_info", "/nothing"])
def test_the_key_is_asked_for(guarded: str, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic !"},
        {"Authorization": KEY[:3]},
    ):
        status, answer_headers, body = ask(guarded, path, **headers)
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
        assert answer_headers["www-authenticate"].startswith("Basic")
    assert ask(guarded, path, Authorization=bearer())[0] == (404 if path == "/nothing" else 200)
    password = base64.b64encode(f"anyone:{KEY}".encode()).decode()  # a browser asks for it by itself
    assert ask(guarded, path, Authorization=f"Basic {password}")[0] != 401


def test_health_needs_no_key(guarded: str) -> None:
    assert ask(guarded, "/health")[::2] == (200, {"status": "ok"})


def test_the_client_is_told_of_a_wrong_key(guarded: str) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        OpenAI(base_url=f"{guarded}/v1", api_key="wrong", max_retries=0).models.list()
    assert "missing or wrong" in caught.value.message


def test_bodies_are_limited(guarded: str) -> None:
    status, _, body = ask(guarded, "/v1/completions", {"prompt": "a" * 2000}, Authorization=bearer())
    assert status == 413 and "2000 bytes" in body["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}',
        b'{"seed": 1' + b"0" * 5000 + b"}", b'{"prompt": "a", "temperature": 1' + b"0" * 400 + b"}", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object(url: str, body: bytes) -> None:
    status, _, answer = ask(url, "/v1/completions", body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"


def test_paths_and_methods_that_are_not_there(url: str) -> None:
    for path, method, status in (("/v1/nothing", "GET", 404), ("/v1/completions", "GET", 405)):
        answer = ask(url, path, method=method)
        assert answer[0] == status and set(answer[2]["error"]) == {"message", "type", "param", "code"}


def test_a_text_ends_after_its_time(lm: LanguageModel) -> None:
    with serving(lm, Settings(max_time=0.2)) as url:
        ends = {str(token_id): -100 for token_id in lm.info.end_ids}
        started = time.monotonic()
        _, _, body = ask(url, "/v1/completions", {"prompt": "a", "max_tokens": 500, "logit_bias": ends})
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] < 500 or time.monotonic() - started < 1


def test_a_body_that_never_comes_is_given_up(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgelm_server.service.BODY_SECONDS", 0.3)
    with serving(lm) as url, socket.create_connection(tuple(urlsplit(url).netloc.split(":"))) as connection:
        connection.settimeout(10)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_nothing_of_a_prompt_is_logged_unless_asked(
    lm: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for wished in (False, True):
        caplog.clear()
        with serving(lm, Settings(log_prompts=wished)) as url:
            ask(url, "/v1/completions", {"prompt": "confidential", "max_tokens": 2})
            ask(
                url,
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "confidential"}], "n": "x"},
            )
            ask(url, "/v1/completions?confidential", b"confidential")
        assert ("confidential" in caplog.text) == wished
        assert "POST /v1/completions 200" in caplog.text
        assert ("answer '" in caplog.text) == wished


def test_metrics(lm: LanguageModel) -> None:
    with serving(lm, parallel=3, queue=5) as url:
        ask(url, "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4})
        ask(url, "/v1/nothing/" + "x" * 50)
        # The engine counts a text after it has handed it over.
        end = time.monotonic() + 10
        while "edgelm_generated_tokens_total 8" not in ask(url, "/metrics")[2] and time.monotonic() < end:
            time.sleep(0.02)
        status, headers, text = ask(url, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['edgelm_requests_total{path="/v1/completions",status="200"}'] == "1"
    assert values['edgelm_requests_total{path="other",status="404"}'] == "1"
    assert values["edgelm_generated_tokens_total"] == "8"
    assert values["edgelm_time_to_first_token_seconds_count"] == "2"
    assert values['edgelm_time_to_first_token_seconds_bucket{le="+Inf"}'] == "2"
    assert (values["edgelm_slots"], values["edgelm_queue_limit"], values["edgelm_texts_active"]) == (
        "3",
        "5",
        "0",
    )
    kinds = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert {kind for _, kind in kinds} == {"counter", "gauge", "histogram"}
    assert all(any(line.startswith(name) for line in values) for name, _ in kinds)


def test_a_full_queue_is_told_at_once(lm: LanguageModel) -> None:
    with (
        serving(lm, parallel=1, queue=0) as url,
        OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
    ):
        ends = {str(token_id): -100 for token_id in lm.info.end_ids}
        stream = client.completions.create(
            model="model", prompt="a", max_tokens=500, logit_bias=ends, stream=True
        )
        next(iter(stream))
        started = time.monotonic()
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="model", prompt="a", max_tokens=1)
        assert time.monotonic() - started < 2 and caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "1"
        stream.close()
        for _ in range(50):  # the slot is free again
            try:
                assert client.completions.create(model="model", prompt="a", max_tokens=1).choices
                break
            except openai.RateLimitError:
                time.sleep(0.05)
        else:
            pytest.fail("the slot of a caller who went was not freed")


def test_health_asks_the_engine(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgelm_server.status.HEALTH_SECONDS", 0.1)
    with lm.engine() as engine, serving(lm, engine=engine) as url:
        assert ask(url, "/health")[0] == 200
        # A processor that hangs holds the engine's thread, while the socket goes on to answer.
        resume = threading.Event()
        ticket = engine.submit(
            "a", max_new_tokens=1, processor=lambda ids, logits: (resume.wait(20), logits)[1]
        )
        time.sleep(0.2)
        status, _, body = ask(url, "/health")
        resume.set()
        assert (status, body["status"]) == (503, "the engine does not answer")
        ticket.result()
        assert ask(url, "/health")[0] == 200


def test_a_request_that_waits_too_long_is_told(lm: LanguageModel) -> None:
    with lm.engine(parallel=1) as engine, serving(lm, Settings(max_time=0.3), engine=engine) as url:
        ends = dict.fromkeys(lm.info.end_ids, -100.0)
        ticket = engine.submit("a", max_new_tokens=100_000, logit_bias=ends)
        status, _, body = ask(url, "/v1/completions", BODY)
        ticket.cancel()
        assert (status, body["error"]["code"]) == (503, "timeout")

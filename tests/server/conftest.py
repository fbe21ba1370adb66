"""A server on loopback, in a thread of the tests, around the model that ships with edgelm."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import uvicorn
from openai import OpenAI

import edgelm
from edgelm_runtime.language_model import LanguageModel
from edgelm_server import Settings, create_app
from edgelm_server.run import bind

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:{% endif %}"
)
KEY = "not-a-secret"


@contextlib.contextmanager
def serving(
    lm: LanguageModel, settings: Settings | None = None, parallel: int = 4, queue: int = 64
) -> Iterator[str]:
    """The address of a server that answers as long as the block runs."""
    with lm.engine(parallel, queue) as engine, bind("127.0.0.1", 0) as listener:
        app = create_app(lm, engine, settings)
        config = uvicorn.Config(app, loop="asyncio", http="h11", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def lm() -> Iterator[LanguageModel]:
    """The model that ships with edgelm, with a chat template that shows tools."""
    with edgelm.load() as model:
        model.info = replace(model.info, generation={**model.info.generation, "chat_template": TEMPLATE})
        yield model


@pytest.fixture(scope="session")
def url(lm: LanguageModel) -> Iterator[str]:
    with serving(lm, Settings(names=("python", "other-name"))) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as made:
        yield made

"""Servers on loopback, in a thread of the tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import uvicorn

from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.serving.engine import Engine
from edgelm_server import Settings, create_app
from edgelm_server.run import bind, configured

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:{% endif %}"
)


@contextlib.contextmanager
def serving(
    lm: LanguageModel,
    settings: Settings | None = None,
    parallel: int = 4,
    queue: int = 64,
    engine: Engine | None = None,
) -> Iterator[str]:
    """The address of a server that answers as long as the block runs."""
    with engine or lm.engine(parallel, queue) as engine, bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(configured(create_app(lm, engine, settings)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

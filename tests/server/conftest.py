"""A server around the model that ships with edgelm, and OpenAI's client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from openai import OpenAI

import edgelm
from edgelm_runtime.language_model import LanguageModel
from edgelm_server import Settings

sys.path.insert(0, str(Path(__file__).parent))

from servers import TEMPLATE, serving


@pytest.fixture(scope="session")
def lm() -> Iterator[LanguageModel]:
    """The model that ships with edgelm, with a chat template that shows tools."""
    with edgelm.load() as plain:
        info = replace(plain.info, generation={**plain.info.generation, "chat_template": TEMPLATE})
        yield LanguageModel(plain._session, info, plain._decoder)


@pytest.fixture(scope="session")
def url(lm: LanguageModel) -> Iterator[str]:
    with serving(lm, Settings(names=("python", "other-name"))) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as made:
        yield made

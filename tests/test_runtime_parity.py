"""Scores, vectors and seeded samples of a model file against the PyTorch model that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgelm.checkpoint import Checkpoint
from edgelm.model import TorchDecoder
from edgelm_export import export_checkpoint
from edgelm_runtime import LanguageModel, generate_ids, load
from tests.small_models import small_model, small_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
TEXT = "the thing in the string, and then in the " * 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanguageModel, Any]]:
    path: Path = tmp_path_factory.mktemp("model") / "m.onnx"
    model = small_model("grouped heads", vocab_size=260).eval()
    export_checkpoint(Checkpoint(model, small_tokenizer()), path, outputs=("embeddings", "hidden"))
    with load(path, "cpu", 1) as lm:
        yield lm, model


@pytest.mark.parametrize("stride", [None, 1, 7, 24])
def test_scores(pair: tuple[LanguageModel, Any], stride: int | None) -> None:
    """Each token from the window that its stride gives it, by PyTorch's own log-softmax."""
    lm, model = pair
    score = lm.score(TEXT, stride=stride)
    ids, context = score.token_ids, model.config.context_length
    step = stride or context // 2
    expected = []
    for start in range(0, len(ids) - 1, step):
        end = min(start + step, len(ids) - 1)
        first = max(0, end - context)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids[first:end]]))[0][0].log_softmax(-1)
        expected += [float(logprobs[i - first, ids[i + 1]]) for i in range(start, end)]
    assert len(ids) > 3 * context
    assert score.logprobs == pytest.approx(expected, abs=1e-4)


def test_vectors(pair: tuple[LanguageModel, Any]) -> None:
    lm, model = pair
    texts = ["the first", "x", "another, longer one"]
    found = lm.embed(texts, batch_size=2)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            state = model.hidden(torch.tensor([lm.tokenizer.encode(text)]))[0].mean(0)
        np.testing.assert_allclose(vector, torch.nn.functional.normalize(state, dim=0), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.0, "top_p": 0.9, "seed": 5},
        {"temperature": 0.7, "top_k": 20, "repeat_penalty": 1.2, "seed": 6},
        {"temperature": 1.3, "typical_p": 0.8, "min_p": 0.02, "seed": 7, "logit_bias": {3: 2.0}},
    ],
)
def test_the_same_text_in_a_batch_and_by_lookup(
    pair: tuple[LanguageModel, Any], options: dict[str, Any]
) -> None:
    lm, model = pair
    prompts = ["in the ", "x", "the string in the string in "]
    ids = [lm.tokenizer.encode(prompt) for prompt in prompts]
    ends = lm.info.end_ids
    expected = [
        generate_ids(TorchDecoder(model), i, ends, max_new_tokens=40, lookup=0, **options) for i in ids
    ]
    for lookup in (0, "auto", 6):
        found = lm.generate(prompts, max_new_tokens=40, lookup=lookup, **options)
        assert [text.token_ids for text in found] == expected

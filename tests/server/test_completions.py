"""POST /v1/completions, through the real client."""

from __future__ import annotations

from openai import OpenAI

from edgelm_runtime.language_model import LanguageModel

PROMPT = "def read_json(path):\n"


def test_the_text_is_the_runtimes(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.generate(PROMPT, max_new_tokens=20)
    answer = client.completions.create(model="python", prompt=PROMPT, max_tokens=20)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (expected.text, "length", None)
    assert answer.id.startswith("cmpl-") and answer.model == "python" and answer.usage is not None
    prompt_tokens = len(lm.encode_prompt(PROMPT))
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": prompt_tokens, "completion_tokens": 20, "total_tokens": prompt_tokens + 20,
    }  # fmt: skip
    assert client.completions.create(model="other-name", prompt=PROMPT).usage.completion_tokens == 16  # type: ignore[union-attr]

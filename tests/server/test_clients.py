"""Programs from elsewhere that take a base URL. None of them is a test dependency."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import serving

from edgelm_runtime.language_model import LanguageModel

QUESTION = "Write a class."


@pytest.fixture(scope="module")
def address(lm: LanguageModel) -> Iterator[str]:
    with serving(lm) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def expected(lm: LanguageModel) -> str:
    return lm.chat([{"role": "user", "content": QUESTION}], max_new_tokens=12).text


@pytest.mark.package("langchain-openai")
def test_langchain(address: str, expected: str) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(
        base_url=address, api_key="none", model="model", max_tokens=12, temperature=0
    )
    assert chat.invoke(QUESTION).content == expected
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == expected
    tool = {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"]},
    }
    free = chat.model_copy(update={"max_tokens": 60})
    answer = free.bind_tools([{"type": "function", "function": tool}], tool_choice="clock").invoke(QUESTION)
    assert [call["name"] for call in answer.tool_calls] == ["clock"]
    assert answer.tool_calls[0]["args"]["zone"] == "UTC"


@pytest.mark.package("llama-index-llms-openai-like")
def test_llama_index(address: str, expected: str) -> None:
    module = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    llm = module.OpenAILike(
        model="model", api_base=address, api_key="none", is_chat_model=True, max_tokens=12, temperature=0
    )
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert llm.chat(messages).message.content == expected
    assert "".join(part.delta for part in llm.stream_chat(messages)) == expected


@pytest.mark.package("pydantic-ai-slim[openai]")
def test_pydantic_ai(address: str, expected: str) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.settings import ModelSettings

    class Fruit(BaseModel):
        name: str = Field(max_length=8)
        count: int = Field(ge=0, le=99)

    model = OpenAIChatModel("model", provider=OpenAIProvider(base_url=address, api_key="none"))
    settings = ModelSettings(max_tokens=12, temperature=0)
    assert Agent(model, model_settings=settings).run_sync(QUESTION).output == expected
    for output_type in (NativeOutput(Fruit), Fruit):  # by a schema, and by a tool that must be called
        settings = ModelSettings(temperature=0)
        assert isinstance(
            Agent(model, output_type=output_type, model_settings=settings).run_sync("Apples").output, Fruit
        )


@pytest.mark.package("llm")
def test_llm(address: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: mine\n  model_name: model\n  api_base: {address}\n"
    )
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "llm",
            "-m",
            "mine",
            "-o",
            "max_tokens",
            "12",
            "-o",
            "temperature",
            "0",
            QUESTION,
        ],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip() == expected.rstrip()


TASKS = {
    "choice": """
task: choice
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{options}}"
doc_to_target: 0
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "continue": """
task: continue
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, temperature: 0}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "rolling": """
task: rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
""",
}
HEAD = """
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
"""


@pytest.mark.package("lm-eval[api]")
def test_lm_evaluation_harness(address: str, lm: LanguageModel, tmp_path: Path) -> None:
    """Its figures, over HTTP, are those of the runtime."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    texts = [
        "import os\nimport ",
        "def read(path):\n    with open(path",
        "for i in range(",
        "class A:\n    def __init__(",
    ]
    options = ["sys", ") as file:", "10):", "self):"]
    documents = [
        {
            "text": text,
            "options": [options[index], *(other for other in options if other != options[index])],
            "answer": lm.generate(text, max_new_tokens=12, stop=["\n"]).text,
        }
        for index, text in enumerate(texts)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(HEAD.replace("DATA", str(data)) + task)
    results: Any = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=f"model=model,base_url={address}/completions,tokenizer_backend=remote,max_length=512",
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )["results"]

    def likelihood(text: str, option: str) -> float:
        ids = lm.tokenizer.encode(text + option)
        return float(lm.score(ids).logprobs[len(lm.tokenizer.encode(text)) - 1 :].sum())

    right = sum(
        max(document["options"], key=lambda option, text=document["text"]: likelihood(text, option))
        == document["options"][0]
        for document in documents
    )
    assert results["choice"]["acc,none"] == right / len(documents)
    assert results["continue"]["exact_match,none"] == 1.0
    # It puts the end token before each text, as `edgelm score` of ids would see it.
    end = lm.info.end_ids[0]
    scores = [lm.score([end, *lm.tokenizer.encode(text)]) for text in texts]
    nats = -sum(float(score.logprobs.sum()) for score in scores)
    size = sum(len(text.encode()) for text in texts)
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / size, rel=1e-6)


def test_the_guides_langchain_example(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langchain_openai")
    from test_guide import ADDRESS, EXAMPLES

    (code,) = [code for code in EXAMPLES if "langchain" in code]
    exec(code.replace(f"{ADDRESS}/v1", address), {})
    assert capsys.readouterr().out.strip()

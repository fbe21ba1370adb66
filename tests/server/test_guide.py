"""The examples of runtime/SERVER.md, executed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import serving

from edgelm_runtime.language_model import LanguageModel

GUIDE = Path(__file__).parents[2] / "runtime/SERVER.md"
TEXT = GUIDE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def address(lm: LanguageModel) -> Iterator[str]:
    with serving(lm) as url:
        yield url


@pytest.mark.parametrize("code", [code for code in EXAMPLES if "langchain" not in code])
def test_example(address: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(code.replace(ADDRESS, address), "example", "exec"), names)
    printed = capsys.readouterr().out
    if "fruit" in names:
        assert set(names["fruit"]) == {"color", "count"}  # type: ignore[call-overload]
    else:
        assert len(printed) > 20


def test_curl(address: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    (block,) = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    outputs = [
        subprocess.run(
            shlex.split(line.replace(ADDRESS, address)), capture_output=True, text=True, check=True
        ).stdout
        for line in block.splitlines()
    ]
    assert '"object":"text_completion"' in outputs[0] and outputs[1].rstrip().endswith("data: [DONE]")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)", TEXT):
        assert (GUIDE.parent / target).exists(), target

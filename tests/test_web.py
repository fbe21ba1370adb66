"""`edgelm web`: the folder that it writes. That the page works is tested in a browser (runtime/web/test)."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgelm.cli import group
from edgelm.web_page import write_page
from edgelm_runtime.errors import EdgelmError, ModelFileError, OptionError, OutputError
from edgelm_runtime.reports.describe import describe

DATA = Path(__file__).parent / "runtime" / "data"
NAMES = ["edgelm.js", "index.html", "model.onnx", "page.css", "page.js"]


def test_the_folder_is_complete_and_refers_to_nothing_else(tmp_path: Path) -> None:
    write_page(DATA / "tiny.onnx", tmp_path / "new" / "page", 'A <b>"title"</b>')
    folder = tmp_path / "new" / "page"
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert (folder / "model.onnx").read_bytes() == (DATA / "tiny.onnx").read_bytes()
    page = (folder / "index.html").read_text()
    assert "<title>A &lt;b&gt;&quot;title&quot;&lt;/b&gt;</title>" in page and "{{" not in page
    settings = json.loads(unescape(re.search(r'data-settings="([^"]*)"', page)[1]))  # type: ignore[index]
    assert settings == {
        "model": "model.onnx", "sidecar": None, "digest": describe(DATA / "tiny.onnx")["digest"],
    }  # fmt: skip
    for name in ("index.html", "page.css", "page.js"):
        assert not re.search(r"https?://", (folder / name).read_text()), name


def test_writing_again_replaces_the_page_and_leaves_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_page(DATA / "tiny.onnx", tmp_path)
    write_page(DATA / "chat.onnx", tmp_path)
    write_page(tmp_path / "model.onnx", tmp_path)  # the model that is in the page already
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, "notes.txt"])
    assert (tmp_path / "model.onnx").read_bytes() == (DATA / "chat.onnx").read_bytes()


@pytest.mark.parametrize(
    ("model", "title", "error", "message"),
    [
        ("foreign.onnx", None, ModelFileError, "without edgelm's metadata"),
        ("nowhere.onnx", None, ModelFileError, "nowhere.onnx"),
        ("tiny.onnx", " ", OptionError, "title is ' '"),
    ],
)
def test_what_cannot_be_a_page(
    model: str, title: str | None, error: type[EdgelmError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        write_page(DATA / model, tmp_path / "page", title)
    assert not (tmp_path / "page").exists()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make the folder"):
        write_page(DATA / "tiny.onnx", tmp_path / "file")


def test_the_command_takes_the_bundled_model_and_says_how_to_look(tmp_path: Path) -> None:
    result = CliRunner().invoke(group, ["web", "-o", str(tmp_path / "page")], catch_exceptions=False)
    assert result.exit_code == 0 and "python -m http.server" in result.output
    assert (tmp_path / "page" / "model.onnx").stat().st_size > 5e6


def test_the_javascript_tests_need_node() -> None:
    """They run by `runtime/web/test.sh`; here it is only said where that cannot be."""
    if shutil.which("node") is None:
        pytest.skip("node is missing: the JavaScript runtime (runtime/web/test.sh) cannot be tested here")


def test_weights_have_the_names_that_the_format_promises(tmp_path: Path) -> None:
    """The browser's engine finds them by name, also where the graph was traced with a cache."""
    onnx = pytest.importorskip("onnx")
    from edgelm_export import export_checkpoint
    from tests.small_models import small_checkpoint

    for kv_cache in (False, True):
        export_checkpoint(small_checkpoint("gpt2"), tmp_path / "model.onnx", kv_cache=kv_cache)
        names = {weight.name for weight in onnx.load(tmp_path / "model.onnx").graph.initializer}
        assert {"position_embedding.weight", "head.weight", "blocks.1.mlp.down.weight"} <= names

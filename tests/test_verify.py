"""A model file that is not what was exported is found out; an intact one passes without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgelm_export import compare_with_checkpoint, export_checkpoint
from edgelm_export.files.writer import append_metadata
from edgelm_runtime.errors import EdgelmError, ModelFileError, VerificationError
from edgelm_runtime.model_file.digest import DIGEST_KEY, file_digest
from edgelm_runtime.model_file.opened import OpenModel
from edgelm_runtime.reports.verify import verify
from tests.small_models import small_checkpoint, small_model

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "model.onnx"
    export_checkpoint(small_checkpoint(), path)
    return path


def scale_weight(name: str, index: tuple[int, ...], factor: float) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array[index] *= factor
        tensor.raw_data = array.tobytes()

    return change


def relu_for_gelu(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Gelu":
            node.op_type = "Relu"
            del node.attribute[:]


def not_causal(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "is_causal":
                attribute.i = 0


def swap_tokens(model: onnx.ModelProto) -> None:
    entry = metadata(model, "edgelm.tokenizer")
    tokenizer = json.loads(entry.value)
    tokenizer["tokens"][100], tokenizer["tokens"][110] = tokenizer["tokens"][110], tokenizer["tokens"][100]
    entry.value = json.dumps(tokenizer)


def drop_golden(model: onnx.ModelProto) -> None:
    model.metadata_props.remove(metadata(model, "edgelm.golden"))


def metadata(model: onnx.ModelProto, key: str) -> onnx.StringStringEntryProto:
    return next(entry for entry in model.metadata_props if entry.key == key)


CHANGES: dict[str, tuple[Change, str]] = {
    "one weight by a hundredth": (
        scale_weight("blocks.0.mlp.up.weight", (3, 4), 1.01),
        "graph or its weights",
    ),
    "a last embedding": (scale_weight("head.weight", (-1, -1), 1.01), "graph or its weights"),
    "another activation": (relu_for_gelu, "graph or its weights"),
    "a swapped tokenizer": (swap_tokens, "edgelm.tokenizer"),
    "no golden vectors": (drop_golden, "edgelm.golden"),
}

# The same, with the digest made to fit: the golden vectors must find them.
CHANGES_WITH_NEW_DIGEST: dict[str, tuple[Change, str]] = {
    "a weight matrix": (scale_weight("blocks.0.mlp.up.weight", (slice(None), 0), 1.2), "other logits"),
    "another activation": (relu_for_gelu, "other logits"),
    "attention to what follows": (not_causal, "other logits"),
    "a swapped tokenizer": (swap_tokens, "no longer encodes"),
    "no golden vectors": (drop_golden, "no golden vectors"),
}


def digest_of(path: Path) -> dict[str, str]:
    with OpenModel(path) as model:
        return file_digest(model)


def changed(source: Path, target: Path, change: Change) -> Path:
    model = onnx.load(source)
    change(model)
    onnx.save(model, target)
    return target


def test_an_intact_file_passes_without_torch_and_onnx(exported: Path) -> None:
    code = (
        "import sys; from edgelm_runtime.reports.verify import verify; print(verify(sys.argv[1], 'cpu', 1));"
        "assert not {'torch', 'onnx', 'edgelm'} & set(sys.modules)"
    )
    paths = f"import sys; sys.path[:0] = {sys.path!r};"
    done = subprocess.run([sys.executable, "-c", paths + code, str(exported)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "greedy tokens replayed on CPUExecutionProvider" in done.stdout


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_found_by_the_digest(name: str, exported: Path, tmp_path: Path) -> None:
    change, message = CHANGES[name]
    with pytest.raises(VerificationError, match=message):
        verify(changed(exported, tmp_path / "m.onnx", change), "cpu", 1)


@pytest.mark.parametrize("name", CHANGES_WITH_NEW_DIGEST)
def test_changes_are_found_by_the_golden_vectors(name: str, exported: Path, tmp_path: Path) -> None:
    change, message = CHANGES_WITH_NEW_DIGEST[name]

    def and_digest(model: onnx.ModelProto) -> None:
        change(model)
        model.metadata_props.remove(metadata(model, DIGEST_KEY))

    path = changed(exported, tmp_path / "m.onnx", and_digest)
    append_metadata(path, {DIGEST_KEY: json.dumps(digest_of(path))})
    with pytest.raises(VerificationError, match=message):
        verify(path, "cpu", 1)


def test_metadata_of_others_does_not_count(exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(exported.read_bytes())
    append_metadata(path, {"author": "somebody"})
    assert verify(path, "cpu", 1).near_ties == 0


def test_a_file_cut_anywhere_is_refused(exported: Path, tmp_path: Path) -> None:
    data = exported.read_bytes()
    path = tmp_path / "m.onnx"
    for length in [0, 1, 2, 9, *np.linspace(10, len(data) - 1, 40).astype(int).tolist()]:
        path.write_bytes(data[:length])
        with pytest.raises(EdgelmError):
            verify(path, "cpu", 1)
        try:
            assert digest_of(path) != digest_of(exported)
        except ModelFileError as error:
            assert any(reason in str(error) for reason in ("cut off", "not an ONNX model", "is empty"))


def test_against_a_checkpoint(exported: Path) -> None:
    report = compare_with_checkpoint(exported, small_checkpoint())
    assert report.max_abs_error < 1e-5
    other = small_checkpoint()
    other.model.blocks[1].mlp.down.weight.data *= 1.1
    with pytest.raises(VerificationError, match="is not this checkpoint"):
        compare_with_checkpoint(exported, other)
    other.held = small_model("seed", vocab_size=272)
    with pytest.raises(VerificationError, match="another architecture"):
        compare_with_checkpoint(exported, other)

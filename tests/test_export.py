"""What stands in an exported file, and what happens when it cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

import edgelm
from edgelm.checkpoint import Checkpoint, save_checkpoint
from edgelm.cli import group
from edgelm.cli.quantize_command import file_size
from edgelm.model import generate
from edgelm_export import compare_with_checkpoint, export_checkpoint, quantize
from edgelm_export.files import writer
from edgelm_export.files.reader import read_graph
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, ModelFileError, OptionError, OutputError
from edgelm_runtime.model_file.external_weights import ALIGNMENT, SMALLEST
from edgelm_runtime.model_file.opened import OpenModel
from edgelm_runtime.reports.describe import describe
from edgelm_runtime.reports.verify import verify
from tests.small_models import small_checkpoint, small_model, small_tokenizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    export_checkpoint(small_checkpoint(), path, outputs=("embeddings", "hidden"))
    return path


def test_is_standard_onnx_without_traces_of_its_maker(exported: Path) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert "Dropout" not in {node.op_type for node in model.graph.node}
    data = exported.read_bytes()
    for trace in (
        "site-packages",
        "stack_trace",
        "Traceback",
        "forward(",
        str(Path.cwd()),
        str(exported.parent),
    ):
        assert trace.encode() not in data
    # Another program may load and save it without breaking the seal.
    onnx.save(model, exported.with_name("resaved.onnx"))
    assert exported.with_name("resaved.onnx").read_bytes() == data


def test_two_exports_are_the_same_file(exported: Path, tmp_path: Path) -> None:
    export_checkpoint(small_checkpoint(), tmp_path / "m.onnx", outputs=("embeddings", "hidden"))
    assert (tmp_path / "m.onnx").read_bytes() == exported.read_bytes()


def test_tied_matrix_is_stored_once_and_cut_to_the_vocabulary(exported: Path) -> None:
    model = onnx.load(exported)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert [name for name, shape in shapes.items() if 260 in shape] == ["head.weight"]
    assert shapes["head.weight"] == (260, 24)
    assert shapes["blocks.0.mlp.up.weight"] == (24, 96)
    assert not any(node.op_type == "Transpose" and node.input[0] in shapes for node in model.graph.node)
    assert json.loads(Session(exported).metadata["edgelm.config"])["vocab_size"] == 260


def test_text_and_further_outputs_come_from_the_one_file(exported: Path) -> None:
    checkpoint = small_checkpoint()
    ids = checkpoint.tokenizer.encode("the inner thing")
    with edgelm.load(exported, threads=1) as lm:
        text = lm.generate("the inner thing", max_new_tokens=12).text
    assert text == checkpoint.tokenizer.decode(generate(checkpoint.model, ids, max_new_tokens=12))
    session = Session(exported, "cpu", threads=1)
    embeddings, hidden = session.run(["embeddings", "hidden"], {"input_ids": np.array([ids])})
    model = checkpoint.model.eval()
    with torch.no_grad():
        np.testing.assert_allclose(embeddings, model.embed(torch.tensor([ids])), atol=1e-6)
        np.testing.assert_allclose(hidden, model.hidden(torch.tensor([ids])), atol=1e-5)
    assert session.inputs["input_ids"].shape == ("batch", "sequence")
    assert session.outputs["logits"].shape == ("batch", "positions", 260)


def test_a_cache_for_cuda(tmp_path: Path) -> None:
    """By operators that CUDA has kernels for, its matrices in half the bytes or not; other precisions are refused."""
    exact, half = tmp_path / "exact.onnx", tmp_path / "half.onnx"
    for path, dtype in ((exact, "fp32"), (half, "fp16")):
        export_checkpoint(small_checkpoint(), path, kv_cache=True, target="cuda", dtype=dtype)
        session = Session(path, "cpu", 1)
        facts = json.loads(session.metadata["edgelm.graph"])
        assert facts["opset"] == 24 and facts["operators"]["TensorScatter"] == 4
        assert "com.microsoft.GroupQueryAttention" not in facts["operators"]
        assert session.inputs["past_key_values.1.value"].shape == ("batch", 4, "capacity", 6)
    for options in ({}, {"cache_dtype": "fp32"}):
        with pytest.raises(OptionError, match="has a cache for cuda"):
            quantize(exact, tmp_path / "int8.onnx", "int8", max_ppl_increase=1000.0, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exact.onnx", "half.onnx"]


def test_modes_of_the_model_are_restored(tmp_path: Path) -> None:
    model = small_model().train()
    model.blocks[0].eval()
    export_checkpoint(Checkpoint(model, None), tmp_path / "m.onnx")
    assert model.training and model.blocks[1].mlp.training and not model.blocks[0].mlp.training


def test_beyond_the_limit_weights_go_to_one_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST_FILE", 10_000)
    export_checkpoint(small_checkpoint(), tmp_path / "a" / "m.onnx")
    moved = (tmp_path / "a").rename(tmp_path / "b") / "m.onnx"
    sidecar = moved.with_name("m.onnx.data")
    assert sorted(moved.parent.iterdir()) == [moved, sidecar]
    onnx.checker.check_model(str(moved), full_check=True)
    assert verify(moved, "cpu", 1).prompts > 1
    data = bytearray(sidecar.read_bytes())
    data[len(data) // 2] ^= 1
    sidecar.write_bytes(data)
    with pytest.raises(edgelm.EdgelmError, match="weights in the sidecar"):
        verify(moved, "cpu", 1)


def test_a_sidecar_goes_with_the_file_that_needed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sidecar, link = tmp_path / "m.onnx", tmp_path / "m.onnx.data", tmp_path / "link.onnx"
    sidecar.write_text("somebody else's")
    export_checkpoint(small_checkpoint(), model)
    assert sidecar.read_text() == "somebody else's"
    monkeypatch.setattr(writer, "LARGEST_FILE", 10_000)
    export_checkpoint(small_checkpoint(), model)
    whole = file_size(model)
    assert whole == model.stat().st_size + sidecar.stat().st_size > 60_000
    monkeypatch.undo()
    link.symlink_to(model.name)
    export_checkpoint(small_checkpoint(), link, dtype="fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.onnx", "m.onnx"] and link.is_symlink()
    assert verify(model, "cpu", 1).prompts > 1


def test_what_cannot_be_exported_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    good = Checkpoint(small_model(), None)
    cuda = {"kv_cache": True, "target": "cuda"}
    cases = [
        (good, "folder", {}, OutputError, "folder: it is a folder"),
        (good, "file/m.onnx", {}, OutputError, "cannot write"),
        (good, "m.onnx", {"opset": 17}, OptionError, "opset 17"),
        (good, "m.onnx", {"outputs": ("states",)}, OptionError, "'states'"),
        (good, "m.onnx", {"atol": -1.0}, OptionError, "atol is -1"),
        (good, "m.onnx", {"target": "tpu"}, OptionError, "no target 'tpu'; choose from cpu, cuda"),
        (good, "m.onnx", {"target": "cuda"}, OptionError, "add --kv-cache"),
        (good, "m.onnx", {**cuda, "opset": 23}, OptionError, "opset 23 .* for a KV cache on cuda"),
        (Checkpoint(small_model("experts"), None), "m.onnx", cuda, OptionError, "operator for experts"),
        (
            Checkpoint(small_model("convolutions"), None),
            "m.onnx",
            cuda,
            OptionError,
            "convolutions with a cache",
        ),
        (good, "m.onnx", {**cuda, "dtype": "int8"}, OptionError, "no int8 file .* choose fp32 or fp16"),
        (
            Checkpoint(small_model(), small_tokenizer()),
            "m.onnx",
            {},
            ExportError,
            "260 ids and the model only 61",
        ),
        (Checkpoint(small_model(), None, {"end_ids": [61]}), "m.onnx", {}, ExportError, "id 61 is outside"),
    ]
    for checkpoint, name, options, error, message in cases:
        with pytest.raises(error, match=message):
            export_checkpoint(checkpoint, tmp_path / name, **options)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_commands(tmp_path: Path) -> None:
    save_checkpoint(small_checkpoint(), tmp_path / "run" / "best")
    source, model, other = (str(tmp_path / name) for name in ("run", "model.onnx", "other"))
    save_checkpoint(small_checkpoint("seed"), Path(other))
    call = CliRunner().invoke
    done = call(group, ["export", source, "-o", model], catch_exceptions=False)
    assert done.exit_code == 0 and "greedy choices agree at 100.00%" in done.output
    done = call(group, ["verify", model, "--against", source], catch_exceptions=False)
    assert done.exit_code == 0 and done.output.count("ok:") == 2
    assert "another architecture" in str(call(group, ["verify", model, "--against", other]).exception)
    done = call(group, ["info", model, "--json"], catch_exceptions=False)
    about = json.loads(done.output)
    assert about["graph"]["parameters"] == 260 * 24 + 24 * 24 + 2 * (12 * 24 * 24 + 13 * 24) + 48
    assert about["graph"]["operators"]["Attention"] == 2
    assert about["inputs"]["logits_at"] == {"type": "tensor(int64)", "shape": ["rows", "positions"]}
    assert about["parity"]["max_abs_error"] <= about["parity"]["atol"]
    assert about["origin"]["versions"]["edgelm"] == edgelm.__version__
    text = call(group, ["info", model], catch_exceptions=False).output
    assert "2 layers, width 24, 4 heads of 6" in text and "260 ids" in text
    assert "holds no model" in str(call(group, ["export", str(tmp_path)]).exception)


def test_a_reader_that_has_gone_leaves_the_file(tmp_path: Path) -> None:
    """`edgelm export ... | true`, and output to a full disk."""
    save_checkpoint(small_checkpoint(), tmp_path / "checkpoint")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", "edgelm", "export", "checkpoint", "-o", "m.onnx"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=120)
    assert verify(tmp_path / "m.onnx", "cpu", 1).prompts > 1


@pytest.mark.parametrize("atol", [0.0, -1.0, float("nan"), float("inf")])
def test_a_tolerance_is_a_number_above_0(atol: float, exported: Path) -> None:
    with pytest.raises(OptionError, match=r"atol is .*; give a finite number above 0"):
        compare_with_checkpoint(exported, small_checkpoint(), atol=atol)
    call = ["verify", str(exported), "--against", "nowhere", "--atol", str(atol)]
    assert isinstance(CliRunner().invoke(group, call).exception, OptionError)


def test_a_request_to_end_leaves_nothing_half_written(tmp_path: Path) -> None:
    save_checkpoint(small_checkpoint(), tmp_path / "checkpoint")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "edgelm", "export", "checkpoint", "-o", "out/m.onnx"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    while process.poll() is None and not list((tmp_path / "out").iterdir()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("spare", [0, -1])
def test_weights_of_the_largest_file_and_of_a_byte_more(
    spare: int, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the limit all is one file; above it every reader finds the sidecar."""
    with OpenModel(exported) as model:
        size = sum(tensor.const_value.nbytes for tensor in read_graph(exported).graph.initializers.values())
        assert not model.sidecars
    monkeypatch.setattr(writer, "LARGEST_FILE", size + spare)
    path = tmp_path / "model.onnx"
    export_checkpoint(small_checkpoint(), path, outputs=("embeddings", "hidden"))
    assert path.with_name("model.onnx.data").exists() == bool(spare)
    about = describe(path)
    assert about["sidecar"] == ("model.onnx.data" if spare else None)
    assert about["bytes"] + about["sidecar_bytes"] == file_size(path)
    assert verify(path, "cpu", 1).prompts > 1
    if spare:
        path.with_name("model.onnx.data").rename(tmp_path / "renamed.data")
        for reader in (describe, verify):
            with pytest.raises(ModelFileError, match=r"second file, model\.onnx\.data, and that is missing"):
                reader(path)


def graph_for_mapping(path: Path) -> bytes | None:
    with OpenModel(path) as model:
        found = model.graph_for_mapping()
    return found[0] if found is not None else None


def test_weights_are_mapped_where_they_lie(tmp_path: Path) -> None:
    """What onnxruntime is given holds no large weight, and computes the same, also through a link."""
    path = tmp_path / "m.onnx"
    export_checkpoint(small_checkpoint(width=48), path)
    data = path.read_bytes()
    small = graph_for_mapping(path)
    assert small is not None and len(small) < len(data) / 2
    large = [t for t in onnx.load_from_string(small).graph.initializer if t.external_data]
    whole = {tensor.name: tensor.raw_data for tensor in onnx.load(path).graph.initializer}
    assert {tensor.name for tensor in large} == {name for name, raw in whole.items() if len(raw) >= SMALLEST}
    for tensor in large:
        place = {entry.key: entry.value for entry in tensor.external_data}
        start, length = int(place["offset"]), int(place["length"])
        assert start % ALIGNMENT == 0 and data[start : start + length] == whole[tensor.name]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.onnx").symlink_to(path)
    feeds = {"input_ids": np.arange(7)[None]}
    expected = Session(data, threads=1).run(["logits"], feeds)[0]
    for source in (path, tmp_path / "elsewhere" / "link.onnx"):
        np.testing.assert_array_equal(Session(source, threads=1).run(["logits"], feeds)[0], expected)


def test_files_of_other_programs_are_read_whole(tmp_path: Path) -> None:
    """Weights that begin anywhere stay in the graph."""
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    export_checkpoint(small_checkpoint(width=48), path)
    model = onnx.load(path)
    model.graph.name += "x"  # all that follows moves by one byte
    onnx.save(model, other)
    assert graph_for_mapping(other) is None
    feeds = {"input_ids": np.arange(7)[None]}
    one, two = (Session(source, threads=1).run(["logits"], feeds)[0] for source in (path, other))
    np.testing.assert_array_equal(one, two)
    other.write_bytes(path.read_bytes()[:-100000])
    with pytest.raises(ModelFileError, match=r"other\.onnx is cut off"):
        Session(other)


def test_matrices_that_are_traced_without_their_numbers_are_not_merged(tmp_path: Path) -> None:
    """The optimiser merges small weights that are equal, and unused memory may be: here it is, all NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        report = export_checkpoint(Checkpoint(small_model("one shared key head"), None), tmp_path / "m.onnx")
    finally:
        torch.use_deterministic_algorithms(False)
    assert report.greedy_agreement == 1

"""From a `Transformer` to an ONNX graph, by `torch.onnx.export(dynamo=True)`.

Choices, and why:
- Rows are taken from the hidden states before the head, at `logits_at`, so a vocabulary-wide row is only
  computed where it was asked for. `GatherND` understands positions that count from the end.
- The tied head is one `Gemm` with the embedding matrix itself (transposed inside the kernel); all other
  matrices are stored the way `MatMul` reads them, (in, out), so no runtime needs to transpose them.
- Matrices are traced without their numbers, as memory that nothing touches, and read one at a time when the file is
  written.
- Names of dynamic axes, inputs and weights are chosen here; traces of the machine that exported are removed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import onnxscript.optimizer
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import nn

from edgelm.model import Stored, StoredModel, Transformer
from edgelm.model.stored import assign_weights
from edgelm_export.opsets import FUSED_OPSET
from edgelm_export.passes.builder import MICROSOFT
from edgelm_export.passes.cleanup import finish
from edgelm_export.passes.fuse import FuseSumAndNorm, PackQueryKeyValue
from edgelm_export.passes.select_rows import SelectRowsEarly
from edgelm_export.tracing.attention import FusedOperators, Operators, PlainOperators
from edgelm_export.tracing.convolution import INPUTS, cache_names
from edgelm_export.tracing.gqa_attention import CachedOperators
from edgelm_export.tracing.scatter_attention import StandardCachedOperators
from edgelm_runtime.model_file.interface import (
    CACHE_LENGTH,
    CAPACITY,
    EMBEDDINGS,
    HIDDEN,
    INPUT_IDS,
    LOGITS,
    LOGITS_AT,
    present_name,
)

CACHED_OPERATORS: dict[str, type[CachedOperators] | type[StandardCachedOperators]] = {
    "cpu": CachedOperators,
    "cuda": StandardCachedOperators,
}
"""What attends to a cache, by the `target` that has kernels for it. (The CPU has kernels for both.)"""

POSITIONS = "position_embedding.weight"


class GraphModule(nn.Module):
    """The function that the graph computes.

    (input_ids, logits_at) -> (logits, extra outputs ...), and with a cache
    (input_ids, logits_at, cache_length, past) -> (logits, extra outputs ..., present ...).
    """

    def __init__(self, model: Transformer, operators: Operators, outputs: Sequence[str], target: str) -> None:
        super().__init__()
        self.model = model
        self.operators = operators
        self.cached_operators = CACHED_OPERATORS[target]
        self.outputs = tuple(outputs)

    def forward(
        self,
        input_ids: torch.Tensor,
        logits_at: torch.Tensor,
        cache_length: torch.Tensor | None = None,
        past: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, ...]:
        if cache_length is None:
            return self._states(input_ids, logits_at, self.operators)
        cached = self.cached_operators(self.model.config, cache_length, past)
        return (*self._states(input_ids, logits_at, cached), *cached.present)

    def _states(
        self, input_ids: torch.Tensor, logits_at: torch.Tensor, operators: Operators
    ) -> tuple[torch.Tensor, ...]:
        model = self.model
        positions = operators.positions(input_ids)
        embeddings = model.embed(input_ids, positions if model.config.position == "learned" else None)
        hidden = model.from_embeddings(embeddings, positions, operators)
        rows = take_rows(hidden, logits_at, input_ids)  # (B, n, width)
        # Two axes, so that the head becomes one Gemm that reads the tied matrix in place.
        logits = model.logits(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        extra = {EMBEDDINGS: embeddings, HIDDEN: hidden}
        return (logits, *(extra[name] for name in self.outputs))


def take_rows(hidden: torch.Tensor, at: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of hidden (B, T, width) at positions (B or 1, n), negative ones from the end: (B, n, width).

    The batch is that of `ids` (B, T): a size asked of `hidden` would tie rows to it that need not exist.
    """
    symbolic = torch.onnx.ops.symbolic
    batch, count = hidden.shape[0], at.shape[1]
    size = symbolic("Shape", [ids], {"start": 0, "end": 1}, dtype=torch.int64, shape=(1,), version=18)
    size = torch.cat([size, torch.ones(1, dtype=torch.int64)])
    everywhere = symbolic("Expand", [at, size], dtype=torch.int64, shape=(batch, count), version=18)
    rows: torch.Tensor = symbolic(
        "GatherND", [hidden, everywhere[..., None]], {"batch_dims": 1},
        dtype=hidden.dtype, shape=(batch, count, hidden.shape[-1]), version=18,
    )  # fmt: skip
    return rows


def build_graph(
    model: StoredModel, opset: int, outputs: Sequence[str] = (), kv_cache: bool = False, target: str = "cpu"
) -> ir.Model:
    """The graph of `model`, whose matrices are read when they are asked for.

    `outputs` are further outputs from EXTRA_OUTPUTS. `opset` is FIRST_OPSET to LAST_OPSET. With `kv_cache` it
    takes and gives back keys and values, as README.md says, by the operators for `target` (CACHED_OPERATORS).
    """
    config = model.config
    fused = opset >= FUSED_OPSET
    operators = FusedOperators(config.position == "rotary") if fused else PlainOperators()
    module = GraphModule(_traceable(model), operators, outputs, target).eval()
    # Two rows and two positions at least: torch.export would take an axis of 1 for a constant.
    length = min(5, config.context_length)
    example: list[Any] = [torch.zeros(2, length, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)]
    free = torch.export.Dim.DYNAMIC
    axes: list[Any] = [{0: free, 1: free}, {0: free, 1: free}]
    inputs, results = [INPUT_IDS, LOGITS_AT], [LOGITS, *outputs]
    if kv_cache:
        shape = (2, config.num_kv_heads, 7, CACHED_OPERATORS[target].head_dim(config.head_dim))
        pasts = cache_names(config)
        shapes = [(2, 1, 7, config.width) if name.endswith(INPUTS) else shape for name in pasts]
        example += [torch.zeros(2, dtype=torch.int64), [torch.zeros(each) for each in shapes]]
        axes += [{0: free}, [{0: free, 2: free}] * len(pasts)]
        inputs += [CACHE_LENGTH, *pasts]
        results += map(present_name, pasts)
    graph = _trace(
        module, tuple(example), opset, input_names=inputs, output_names=results, dynamic_shapes=tuple(axes)
    )
    _attach_matrices(graph, model)
    ids, at, *cache = graph.graph.inputs
    names = _axis_names(ids, "batch", "sequence") | _axis_names(at, "rows", "positions")
    for value in cache:
        axis = CAPACITY if any(config.convolution_layers) else CACHED_OPERATORS[target].axis
        past_axes = ("batch", "", axis, "")
        names |= _axis_names(value, *(("batch",) if value.name == CACHE_LENGTH else past_axes))
    finish(graph, names)
    _name_positions(graph, model)
    if not kv_cache:
        SelectRowsEarly()(graph)
    else:
        for step in (PackQueryKeyValue(), FuseSumAndNorm(), RemoveUnusedNodesPass()):
            step(graph)
    if kv_cache or config.num_experts:
        graph.opset_imports[MICROSOFT] = 1
    at.const_value = ir.tensor([[-1]], dtype=ir.DataType.INT64, name=LOGITS_AT)
    graph.graph.register_initializer(at)
    return graph


def _is_matrix(name: str, weight: Stored) -> bool:
    """Whether a weight is traced without its numbers: the optimiser folds what it can of the others."""
    return len(weight.shape) > 1 and name != POSITIONS


def _traceable(model: StoredModel) -> Transformer:
    skeleton = model.skeleton()
    weights = {
        name: _placeholder(weight, number) if _is_matrix(name, weight) else model.read(name)
        for number, (name, weight) in enumerate(model.weights.items())
    }
    assign_weights(skeleton, weights)
    return skeleton


def _placeholder(weight: Stored, number: int) -> torch.Tensor:
    """Memory that nothing touches, but for the first element: the optimiser merges small weights that are equal."""
    placeholder = torch.empty(weight.shape)
    placeholder.view(-1)[0] = number
    return placeholder


def _attach_matrices(graph: ir.Model, model: StoredModel) -> None:
    """Give the matrices of a traced graph their numbers."""
    initializers = graph.graph.initializers
    for name, weight in model.weights.items():
        if _is_matrix(name, weight):
            tied = model.config.tied_head and name == "token_embedding.weight"
            value = initializers["model.head.weight" if tied else f"model.{name}"]
            value.const_value = ir.LazyTensor(
                partial(_tensor, model, name),
                dtype=ir.DataType.FLOAT, shape=ir.Shape(weight.shape), name=value.name,
            )  # fmt: skip


def _tensor(model: StoredModel, name: str) -> ir.TensorProtocol:
    return ir.tensor(model.read(name).numpy(), name=name)


def _name_positions(graph: ir.Model, model: StoredModel) -> None:
    """Learned positions are called what the checkpoint calls them, also where the optimiser folded them into a
    constant of its own: readers that know no graph find weights by name."""
    if model.config.position != "learned" or POSITIONS in graph.graph.initializers:
        return
    table = model.read(POSITIONS).numpy()
    for value in graph.graph.initializers.values():
        tensor = value.const_value
        if (
            tensor is not None
            and tuple(tensor.shape.numpy()) == table.shape
            and (tensor.numpy() == table).all()
        ):
            value.name = POSITIONS
            return


def _trace(module: nn.Module, example: tuple[torch.Tensor, ...], opset: int, **options: Any) -> ir.Model:
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)  # it tells of every optional package that is not installed
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, example, dynamo=True, optimize=False, verbose=False, opset_version=opset, **options
            )
    finally:
        loud.setLevel(level)
    assert program is not None
    graph: ir.Model = program.model
    onnxscript.optimizer.optimize_ir(graph, should_fold=lambda node: False if _reads_matrix(node) else None)
    graph.opset_imports[""] = opset
    return graph


def _reads_matrix(node: ir.Node) -> bool:
    """Whether a node reads a matrix of the model, whose numbers are not there yet (`passes` transposes them)."""
    return any(
        value is not None
        and value.is_initializer()
        and value.const_value is not None
        and len(value.const_value.shape) > 1
        and (value.name or "").startswith("model.")
        and value.name != f"model.{POSITIONS}"
        for value in node.inputs
    )


def _axis_names(value: ir.Value, *names: str) -> dict[str, str]:
    """What the tracer calls the axes of an input, and what they are called in the file."""
    assert value.shape is not None
    return {
        str(size.value): name
        for size, name in zip(value.shape, names, strict=True)
        if not isinstance(size, int)
    }

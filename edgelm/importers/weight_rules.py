"""From a source's weights to this project's: names as data, one table per family.

A `Rule` says which tensors of the source make up one weight of the `Transformer`, and how. The config
decides which weights there are; whatever the source lacks, and whatever no rule uses, is an error that
lists the names. Rules rearrange whole rows only (GGUF blocks survive that), except for the few whose
function says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from edgelm.config import ModelConfig
from edgelm.model import Stored, Transformer
from edgelm_runtime.errors import CheckpointError

Weights = Mapping[str, Stored]
"""Tensors of a source by name, wrappers' prefixes already off."""

Arrange = Callable[[Sequence[torch.Tensor], ModelConfig], torch.Tensor]


def join(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """The tensors one below the other; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


@dataclass(frozen=True)
class Rule:
    """`target` is made of `sources` by `arrange`. `{i}` is the layer; a source with `{h}` stands for one
    tensor per head, with `{e}` for one per expert."""

    target: str
    sources: tuple[str, ...]
    arrange: Arrange = join

    def names(self, layer: int, config: ModelConfig) -> list[str]:
        """The sources' names for a layer."""
        return [
            name.format(i=layer, h=part, e=part)
            for name in self.sources
            for part in range(
                config.num_heads if "{h}" in name else config.num_experts if "{e}" in name else 1
            )
        ]


@dataclass(frozen=True)
class Family:
    """The weight names of one kind of source.

    `ignored` are patterns of tensors that carry nothing (masks, position indices, inverse frequencies).
    """

    rules: tuple[Rule, ...]
    layer: str
    """How names of layer tensors begin, up to the layer's number: `layers.`"""
    embedding: str
    head: str
    ignored: tuple[str, ...] = ()
    head_alias: str = ""
    """What other versions of the same program call the head."""

    def renamed(self, weights: Weights) -> Weights:
        """The weights with the head under its one name."""
        if self.head_alias not in weights or self.head in weights:
            return weights
        return {self.head if name == self.head_alias else name: stored for name, stored in weights.items()}

    def layers(self, weights: Weights) -> int:
        """How many layers the names speak of."""
        start = re.compile(re.escape(self.layer) + r"(\d{1,6})\.")
        found = {int(match[1]) for name in weights if (match := start.match(name))}
        return max(found, default=-1) + 1

    def rows(self, weights: Weights, source: str) -> int:
        """The rows of the embedding. Raises CheckpointError where there is none."""
        embedding = weights.get(self.embedding)
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"the weights of {source} do not fit: missing {self.embedding}")
        return embedding.shape[0]

    def scaled(self, target: str, factor: float) -> Family:
        """The same names, where the weight and bias `target` are multiplied by `factor`."""

        def scaled(rule: Rule) -> Rule:
            def arrange(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
                return rule.arrange(tensors, config).float() * factor

            return replace(rule, arrange=arrange)

        both = (f"{target}.weight", f"{target}.bias")
        return replace(
            self, rules=tuple(scaled(rule) if rule.target in both else rule for rule in self.rules)
        )

    def tied(self, weights: Weights, said: bool) -> bool:
        """Whether the head is the embedding: `said` so by the file where it holds no head, or equal to it.

        A head that is missing without such a word stays missing: it may lie in another file.
        """
        if self.head not in weights:
            return said
        head, embedding = weights[self.head], weights.get(self.embedding)
        if embedding is None or head.shape != embedding.shape:
            return False
        return torch.equal(head.read(), embedding.read())


WRAPPERS = ("module.", "_orig_mod.", "transformer.", "model.")


def without_prefixes(weights: Weights, source: str, further: tuple[str, ...] = ()) -> dict[str, Stored]:
    """The same weights under names without wrappers' prefixes, in whatever nesting.

    Raises CheckpointError where two names become one.
    """
    prefix = re.compile("(?:" + "|".join(re.escape(p) for p in (*WRAPPERS, *further)) + ")+")
    clean: dict[str, Stored] = {}
    for name, stored in weights.items():
        match = prefix.match(name)
        short = name[match.end() :] if match else name
        if short in clean:
            raise CheckpointError(f"{source} holds {short} twice, under different prefixes", "save it again")
        clean[short] = stored
    return clean


def take_weights(family: Family, config: ModelConfig, weights: Weights, source: str) -> dict[str, Stored]:
    """The weights of `Transformer(config)`, from those of a source, each made when it is read.

    Raises CheckpointError that lists missing and unknown names, or names a weight that cannot be made.
    """
    plan = weight_plan(family, config)
    check_names(family, plan, weights, source)
    made: dict[str, Stored] = {}
    for target, (rule, names) in plan.items():
        shapes = [torch.empty(weights[name].shape, device="meta") for name in names]
        shape = tuple(_made(target, rule, shapes, config, source).shape)
        made[target] = Stored(
            shape, partial(_read, target, rule, [weights[name] for name in names], config, source)
        )
    return made


def weight_plan(family: Family, config: ModelConfig) -> dict[str, tuple[Rule, list[str]]]:
    """For each weight of `Transformer(config)`: its rule, and the names of the source's tensors."""
    rules = {rule.target: rule for rule in family.rules}
    with torch.device("meta"):
        targets = list(Transformer(config).state_dict())
    plan = {}
    for target in targets:
        if target == "head.weight" and config.tied_head:
            continue
        match = re.match(r"blocks\.(\d+)\.", target)
        rule = rules.get(re.sub(r"^blocks\.\d+\.", "blocks.{i}.", target))
        if rule is None:
            raise CheckpointError(
                f"this kind of source has no tensor for {target}", "the architecture differs"
            )
        plan[target] = (rule, rule.names(int(match[1]) if match else 0, config))
    return plan


def check_names(
    family: Family, plan: Mapping[str, tuple[Rule, list[str]]], weights: Weights, source: str
) -> None:
    """Raise CheckpointError that lists what the plan misses and what no rule uses."""
    needed = {name for _, names in plan.values() for name in names}
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in family.ignored) or "(?!)")
    missing = sorted(needed - weights.keys())
    spare = weights.keys() - needed - {family.head}
    unknown = sorted(name for name in spare if not ignored.fullmatch(name))
    problems = [
        f"{kind} {_listed(names)}" for kind, names in (("missing", missing), ("unknown", unknown)) if names
    ]
    if problems:
        raise CheckpointError(f"the weights of {source} do not fit: {'; '.join(problems)}")


def _read(
    target: str, rule: Rule, sources: Sequence[Stored], config: ModelConfig, source: str
) -> torch.Tensor:
    return _made(target, rule, [stored.read() for stored in sources], config, source)


def _made(
    target: str, rule: Rule, tensors: Sequence[torch.Tensor], config: ModelConfig, source: str
) -> torch.Tensor:
    try:
        return rule.arrange(tensors, config)
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:6])
        raise CheckpointError(
            f"{source}: no {target} can be made of {', '.join(rule.sources)} {shapes}",
            "the file contradicts itself",
        ) from error


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest

"""The precisions that a file can be written in, and what may be asked of each.

A precision is one value of PRECISIONS. What it does to a graph is in `plan.py`, and how a matrix becomes blocks in
`rounding.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from edgelm_export.quantization.quality import Bound
from edgelm_runtime.errors import OptionError
from edgelm_runtime.validation import number, whole

FP32 = "fp32"  # what an export is made in, and what the others are made from


@dataclass(frozen=True)
class Precision:
    """What `--dtype` names."""

    name: str
    bits: int
    """Of a weight."""
    max_ppl_increase: float
    """Percent of perplexity that it may cost by default."""
    min_agreement: float
    """Percent of positions at which the likeliest token has to be that of fp32, by default. Perplexity alone would not
    do: errors at many tokens can cancel out."""
    kept_bits: int = 16
    """Bits of a weight in those matrices that lose too much otherwise."""
    kernels: tuple[str, ...] = ()
    """`rows` scales whole rows, for whole windows; `blocks` is for steps with a cache."""
    block_sizes: tuple[int, ...] = ()
    """Weights that may share a scale, the largest first. The operator takes larger blocks too, but adds up a single
    row of them in another order than the rows of a longer pass."""
    cache_dtypes: tuple[str, ...] = ("auto", "fp32")
    """What a cache may hold; `auto` is the last one."""

    def __str__(self) -> str:
        return self.name


FP16 = Precision("fp16", 16, 0.5, 98.0)
INT8 = Precision(
    "int8", 8, 2.0, 90.0, kernels=("auto", "rows", "blocks"), block_sizes=(64, 32, 16),
    cache_dtypes=("auto", "fp32", "int8"),
)  # fmt: skip
INT4 = Precision(
    "int4", 4, 8.0, 80.0, kept_bits=8, kernels=("auto", "blocks"), block_sizes=(32, 16),
    cache_dtypes=("auto", "fp32", "int8"),
)  # fmt: skip
PRECISIONS = {precision.name: precision for precision in (FP16, INT8, INT4)}


class QuantizeOptions(TypedDict, total=False):
    """What `quantize` and `export_checkpoint` take by name, as `Quantization` describes it. None is the default."""

    text: Path | str | None
    max_ppl_increase: float | None
    min_agreement: float | None
    kernel: str | None
    block_size: int | None
    cache_dtype: str | None
    fit: bool | None


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A precision with what was asked of it, checked before any work."""

    precision: Precision
    text: Path | None = None
    """UTF-8 text: its first 4096 tokens for evaluation, the rest for calibration. None: built-in texts."""
    max_ppl_increase: float | None = None
    """Percent of perplexity that may be lost. None: the precision's own bound."""
    min_agreement: float | None = None
    """Percent of positions at which the likeliest token has to be that of fp32. None: the precision's own bound."""
    kernel: str = "auto"
    """One of the precision's; `auto` is `blocks` where the file has a cache."""
    block_size: int | None = None
    """Weights that share a scale. None: 32."""
    cache_dtype: str = "auto"
    """What the cache holds: int8, or fp32, which is faster for long prompts."""
    fit: bool = True
    """Fit rounding to the calibration text: GPTQ for int4, smoothing for int8 rows. Without, a large model takes much
    less time and loses more."""

    @classmethod
    def of(cls, dtype: str, options: Mapping[str, Any]) -> Quantization | None:
        """`options` for the precision `dtype`; None for fp32, which has none.

        Raises OptionError for an option that is unknown, cannot be followed or would have no effect.
        """
        known = [field.name for field in fields(cls) if field.name != "precision"]
        if unknown := sorted(set(options) - set(known)):
            raise OptionError(f"there is no option {unknown[0]!r}", f"choose from {', '.join(known)}")
        given = {name: value for name, value in options.items() if value is not None and value != "auto"}
        if dtype == FP32:
            if given:
                raise OptionError(
                    f"{next(iter(given))} has no meaning for fp32", f"choose from {', '.join(PRECISIONS)}"
                )
            return None
        if not isinstance(dtype, str) or dtype not in PRECISIONS:
            raise OptionError(
                f"there is no precision {dtype!r}", f"choose from {FP32}, {', '.join(PRECISIONS)}"
            )
        if "text" in given:
            given["text"] = _text(given["text"])
        asked = cls(precision=PRECISIONS[dtype], **given)
        asked._check()
        return asked

    def _check(self) -> None:
        precision = self.precision
        if self.kernel not in (precision.kernels or ("auto",)):
            choices = ", ".join(precision.kernels) if precision.kernels else "leave it out"
            raise OptionError(f"there is no kernel {self.kernel!r} for {precision}", f"choose from {choices}")
        if self.cache_dtype not in precision.cache_dtypes:
            raise OptionError(
                f"there is no {self.cache_dtype!r} cache for {precision}",
                f"choose from {', '.join(precision.cache_dtypes)}",
            )
        if self.block_size is not None:
            whole("block_size", self.block_size, 1)
            if self.block_size not in precision.block_sizes:
                sizes = ", ".join(map(str, precision.block_sizes))
                raise OptionError(
                    f"the block size is {self.block_size} for {precision}",
                    f"choose from {sizes}" if sizes else "leave it out: it has no blocks",
                )
        if not isinstance(self.fit, bool):
            raise OptionError(f"fit is {self.fit!r}", "give True or False")
        if not self.fit and precision is FP16:
            raise OptionError("fit has no meaning for fp16", "leave it out")
        if self.max_ppl_increase is not None:
            number("max_ppl_increase", self.max_ppl_increase, -100, math.inf)
        if self.min_agreement is not None:
            number("min_agreement", self.min_agreement, 0, 100)

    def check_file(self, cached: bool) -> None:
        """Raise OptionError for what a file with a cache (`cached`) or without one has no use for."""
        if self.cache_dtype != "auto" and not cached:
            raise OptionError(
                f"the cache is to be {self.cache_dtype}, and the file has none", "add --kv-cache on export"
            )
        if self.block_size is not None and not self.first_block_size(cached):
            raise OptionError(
                f"the block size is {self.block_size}, and int8 rows have no blocks",
                "leave it out, or choose the kernel blocks",
            )

    def first_block_size(self, cached: bool) -> int:
        """The block size to begin with; 0 where the precision or its kernel has no blocks."""
        rows = self.kernel == "rows" or (self.kernel == "auto" and not cached)
        if not self.precision.kernels or (rows and "rows" in self.precision.kernels):
            return 0
        return self.block_size or 32

    def int8_cache(self, cached: bool) -> bool:
        """Whether the file is to keep its cache in int8."""
        chosen = self.precision.cache_dtypes[-1] if self.cache_dtype == "auto" else self.cache_dtype
        return cached and chosen == "int8"

    @property
    def bound(self) -> Bound:
        """What may be lost."""
        own, ppl, agreement = self.precision, self.max_ppl_increase, self.min_agreement
        return Bound(
            own.max_ppl_increase if ppl is None else ppl,
            own.min_agreement if agreement is None else agreement,
        )


def _text(value: object) -> Path:
    if not isinstance(value, (str, Path)):
        raise OptionError(f"text is {value!r}", "give the path of a UTF-8 file")
    if not Path(value).is_file():
        raise OptionError(f"there is no text {value}", "give the path of a UTF-8 file")
    return Path(value)

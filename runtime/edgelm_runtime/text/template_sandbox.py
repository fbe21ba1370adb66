"""Chat templates are programs that come with a model, so they run in a sandbox, with bounds.

Jinja's own sandbox keeps a template away from Python's internals. What it does not do is end it: two nested ranges
run for hours, `'a' * 10**9` takes a gigabyte, and a list that holds itself twice, forty times over, is printed
for ever. Here every loop, call, filter, operator and literal of a template reports to a `Budget`. Nothing runs in
another thread or process.

The functions that a template may count on are those of the Hugging Face convention
(https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.environment import Template
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edgelm_runtime.text.template_budget import (
    MAX_BITS,
    MAX_DEPTH,
    MAX_SOURCE,
    Budget,
    LimitError,
    foresee,
    now,
    under_way,
)

# Filters for web pages, which no conversation needs; their regular expressions can take for ever.
LEFT_OUT = ("striptags", "urlize", "wordwrap", "xmlattr")
# Methods of a text that make other things than texts, or read other patterns than `format` does.
UNSAFE_METHODS = ("encode", "format_map", "maketrans", "translate")


class _Metered(NodeTransformer):
    """Makes the parts of a template that Jinja gives no hook for report to the budget."""

    def __init__(self) -> None:
        self._depth = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        block = isinstance(node, (nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.With))
        self._depth += block
        if self._depth > MAX_DEPTH:
            raise LimitError(f"it nests blocks more than {MAX_DEPTH} levels deep")
        super().generic_visit(node, *args, **kwargs)
        self._depth -= block
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        turn = nodes.Filter(nodes.Const(None), "counted", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "concatenated", [], [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        return nodes.Filter(node, "counted", [], [], None, None, lineno=node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(node, "counted", [], [], None, None, lineno=node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(node, "counted", [], [], None, None, lineno=node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        if node.ctx != "load":  # the names that a loop or an assignment gives values to
            return node
        return nodes.Filter(node, "counted", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training, and changes no text."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with every value counted."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    # Texts of macros, of calls and of `{% set %}` blocks are joined by this.
    concat = staticmethod(lambda parts: _joined("", parts))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _Generation]
        )
        self.filters = {
            name: _metered(name, function) for name, function in self.filters.items() if name not in LEFT_OUT
        }
        self.filters |= {
            "tojson": _tojson,
            "join": _join,
            "counted": lambda value: now().made(value),
            "concatenated": lambda parts: _joined("", map(str, parts)),
        }
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metered().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr not in UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)
        if isinstance(obj, (int, float, bytes)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = now()
        budget.step()
        # Jinja wraps the method `format` of a text.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join":
                return _joined(owner, *args, **kwargs)
            foresee(budget, __obj.__name__, owner, [*args, *kwargs.values()])
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = now()
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                    budget.text(len(many) * max(times, 0))
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, type(left)):
            budget.text(len(left) + len(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_BITS:
                raise LimitError("it makes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            foresee(budget, "format", left, right if isinstance(right, tuple) else (right,))
        return budget.made(super().call_binop(context, operator, left, right))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that reports to the budget. Jinja's mark on a function says what it wants to be given first."""
    mark = getattr(function, "jinja_pass_arg", None)

    def metered(*args: Any, **kwargs: Any) -> Any:
        budget = now()
        budget.step()
        value, *given = [*(args[1:] if mark else args), *kwargs.values()]
        if isinstance(value, str):
            foresee(budget, name, value, given)
        elif name in ("batch", "slice", "round"):
            budget.width(*given)
        elif name == "sum" and any(isinstance(start, (list, tuple)) for start in given):
            raise LimitError("it adds up lists")
        return budget.made(function(*args, **kwargs))

    if mark:
        metered.jinja_pass_arg = mark  # type: ignore[attr-defined]
    return metered


@pass_context
def _join(context: Any, value: Any, d: str = "", attribute: str | None = None) -> str:
    """Jinja's `join`, counted as it goes."""
    if attribute is not None:
        value = _ENVIRONMENT.call_filter("map", value, kwargs={"attribute": attribute}, context=context)
    return _joined(str(d), map(str, value))


def _joined(separator: str, parts: Iterable[str]) -> str:
    budget = now()
    kept: list[str] = []
    for part in parts:
        budget.step()
        budget.text(len(part) + len(separator))
        kept.append(part)
    return separator.join(kept)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands, without Jinja's escapes for HTML."""
    budget = now()
    budget.width(indent)
    budget.made(value)
    if isinstance(indent, str):
        raise TemplateError("tojson indents by a number")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    budget.text(len(text))
    return text


def _raise(message: str) -> None:
    raise TemplateError(message)


_ENVIRONMENT = _Environment()


def compiled(source: str) -> tuple[Template, frozenset[str]]:
    """A template, ready to be rendered, and the variables that it reads.

    Raises TemplateError, or whatever else Python makes of it.
    """
    if len(source) > MAX_SOURCE:
        raise LimitError(f"it has {len(source)} characters, more than a chat template needs")
    token = under_way.set(Budget(0))
    try:
        variables = find_undeclared_variables(_ENVIRONMENT.parse(source))
        return _ENVIRONMENT.from_string(source), frozenset(variables)
    finally:
        under_way.reset(token)


def render(template: Template, variables: Mapping[str, Any], input_size: int) -> str:
    """The text that a template makes of `variables`, which hold `input_size` characters of text.

    Raises TemplateError where it refuses them or needs more than it may use, or whatever else it raises.
    """
    token = under_way.set(Budget(input_size))
    try:
        return _joined("", template.generate(dict(variables)))
    finally:
        under_way.reset(token)

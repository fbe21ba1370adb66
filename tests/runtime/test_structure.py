"""The house stays one that a newcomer finds their way in: short modules, few floors."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import edgelm_runtime

ROOT = Path(edgelm_runtime.__file__).parent
LONGEST_MODULE, MOST_LEVELS = 300, 9


def imported(path: Path) -> set[str]:
    """The runtime's modules that importing `path` imports: what stands at its top, except for type checkers."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edgelm_runtime."):
            found |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def test_no_module_is_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert not {str(path): length for path, length in lengths.items() if length > LONGEST_MODULE}


def test_imports_have_few_levels() -> None:
    modules = {
        "edgelm_runtime." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in ROOT.rglob("*.py")
        if path.name != "__init__.py"
    }

    @cache
    def chain(module: str) -> tuple[str, ...]:
        below = [chain(name) for name in imported(modules[module]) & modules.keys()]
        return (module, *max(below, key=len, default=()))

    longest = max(map(chain, modules), key=len)
    assert len(longest) <= MOST_LEVELS, " > ".join(longest)

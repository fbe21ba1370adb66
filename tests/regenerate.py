"""Writes anew what is derived from declarations: keyword types, tables, help texts, the tree.

python tests/regenerate.py           writes
python tests/regenerate.py --check   fails where a file differs from what it would write
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

import click
from click.testing import CliRunner

from edgelm.cli import group
from edgelm_runtime.generation.options import OPTIONS

ROOT = Path(__file__).parents[1]
KEYWORDS = ROOT / "runtime" / "edgelm_runtime" / "generation" / "keywords.py"
GUIDE = ROOT / "runtime" / "README.md"
HELP = ROOT / "edgelm" / "cli" / "README.md"
ARCHITECTURE = ROOT / ".github" / "ARCHITECTURE.md"
PACKAGES = ("edgelm", "export/edgelm_export", "runtime/edgelm_runtime", "runtime/edgelm_server")
WIDTH = 100  # columns of the help texts

HEADER = '''"""The keyword options of generation, for type checkers and editors.

Written by tests/regenerate.py from the declarations in options.py: change them there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

from edgelm_runtime.generation.options import Overflow, Processor
from edgelm_runtime.generation.results import Piece


class Options(TypedDict, total=False):
    """What `LanguageModel.generate`, `stream`, `chat` and `stream_chat` take by name."""
'''


def keywords() -> str:
    """The module keywords.py."""
    lines = [HEADER]
    for about in OPTIONS.values():
        lines.append(f"    {about.name}: {about.kind.annotation}")
        text = f'"""{about.help}"""'
        lines += textwrap.wrap(text, 105, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def guide() -> str:
    """The guide, with its table of options."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    rows += [f"| `{about.name}` | {about.default_text} | {about.help} |" for about in OPTIONS.values()]
    return _between(GUIDE, "options", rows)


def architecture() -> str:
    """The architecture page, with the first line of each module."""
    lines = ["```text"]
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            lines.append(f"{folder.relative_to(ROOT)}/")
            for path in sorted(folder.glob("*.py")):
                about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                lines.append(f"    {path.name:24} {about.splitlines()[0] if about else ''}".rstrip())
    return _between(ARCHITECTURE, "tree", [*lines, "```"])


def _between(page: Path, name: str, lines: list[str]) -> str:
    """`page` with `lines` between its two comments about `name`."""
    start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    pattern = re.escape(start) + ".*?" + re.escape(end)
    text = page.read_text(encoding="utf-8")
    return re.sub(pattern, lambda _: start + "\n".join(lines) + "\n" + end, text, flags=re.DOTALL)


def help_page() -> str:
    """All help texts of the command line."""
    parts = [
        "# The command line\n\nWhat `edgelm COMMAND --help` says; written by `python tests/regenerate.py`.\n"
    ]
    context = click.Context(group)
    for name in ["", *group.list_commands(context)]:
        arguments = [name, "--help"] if name else ["--help"]
        result = CliRunner().invoke(
            group, arguments, prog_name="edgelm", terminal_width=WIDTH, max_content_width=WIDTH
        )
        assert result.exit_code == 0, result.output
        title = f"edgelm {name}".strip()
        parts.append(f"## {title}\n\n```text\n{result.output.rstrip()}\n```\n")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    return {KEYWORDS: keywords(), GUIDE: guide(), HELP: help_page(), ARCHITECTURE: architecture()}


if __name__ == "__main__":
    stale = {
        path: text
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        print(f"{'stale' if '--check' in sys.argv else 'wrote'}: {path.relative_to(ROOT)}", file=sys.stderr)
    sys.exit(bool(stale) and "--check" in sys.argv)

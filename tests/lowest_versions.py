"""Prints the lowest versions that pyproject.toml admits, as requirements.

python tests/lowest_versions.py [EXTRA ...]
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def lowest(extras: list[str]) -> list[str]:
    """`name==version` for each `name>=version` of the dependencies and of `extras`."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [re.sub(r"\s*;.*", "", line).replace(">=", "==") for line in wanted]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))

"""Files that ship with the package."""

from __future__ import annotations

from pathlib import Path


def assets_folder() -> Path:
    """The folder `models/` with the bundled model and the presets: next to this module in an installed
    package, at the top of the repository in a checkout."""
    installed = Path(__file__).parent / "models"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "models"

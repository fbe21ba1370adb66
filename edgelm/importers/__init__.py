"""Models from elsewhere as checkpoints of this project: `load_source`."""

from edgelm.importers.detect import load_source

__all__ = ["load_source"]

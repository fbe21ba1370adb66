"""Which layers of a model see only a window of the text, as config.json says it."""

from __future__ import annotations

from typing import Any

from edgelm.importers.settings import Settings


def layer_types(settings: Settings, layers: int) -> list[bool]:
    """Whether each layer is local, by `layer_types`; empty where the field is absent."""
    kinds = settings.values.get("layer_types")
    if kinds is None:
        return []
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= set(known):
        raise settings.refused("layer_types")
    return [known[str(kind)] for kind in kinds]


def window(settings: Settings, name: str, local: list[bool]) -> dict[str, Any]:
    """The fields of a sliding window, none where it is null or no layer has one."""
    if settings.values.get(name) is None or not any(local):
        return {}
    return {"sliding_window": settings.whole(name), "local_layers": tuple(local)}

"""Smaller graphs, with the loss measured and bounded."""

"""Graph in, graph with the same function out."""

"""From a PyTorch model to a graph, and PyTorch's own answers. The only package here that imports torch."""

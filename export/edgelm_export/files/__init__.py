"""Writing a model file and its metadata."""

"""Files of a source, read without trusting them: paths, JSON, safetensors, PyTorch archives, pickles."""

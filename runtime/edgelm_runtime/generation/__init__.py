"""The generation loop: token ids and numpy only, no onnxruntime."""

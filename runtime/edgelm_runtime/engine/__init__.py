"""Everything that touches onnxruntime: sessions, decoders, the KV cache. Knows nothing of sampling."""

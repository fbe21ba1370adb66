"""Everything that touches onnxruntime: sessions, decoders, the KV cache. Knows nothing of sampling.

Its telemetry is off unless the environment already says otherwise, which must be settled before it is imported.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

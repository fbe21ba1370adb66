"""How long an export takes and how much memory it needs: `python tests/benchmarks/export.py [PARAMETERS]`.

Makes a GPT-2-like checkpoint (default: about 100 million parameters) in a temporary folder, exports it in a
fresh process, and prints the seconds, those of CPU (which tell more on a busy machine) and the peak of resident
memory beyond that of the imports alone. A second argument holds options of `export_checkpoint` as a Python
dictionary: `100e6 "{'dtype': 'int8'}"`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

CHILD = """
import resource, sys, time
from pathlib import Path
import numpy, onnx, onnxruntime, onnxscript.optimizer, torch, torch.export
from edgelm.checkpoint import load_checkpoint
from edgelm_export import export_checkpoint
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
base, started = peak(), time.perf_counter()
def report(line):
    print(f"{time.perf_counter() - started:6.1f} s  {(peak() - base) / 1e6:6.0f} MB  {line}", flush=True)
folder, out = map(Path, sys.argv[1:3])
export_checkpoint(load_checkpoint(folder), out, report=report, **eval(sys.argv[3]))
size = out.stat().st_size
print(f"total {time.perf_counter() - started:.1f} s ({time.process_time():.1f} s of CPU), file {size / 1e6:.0f} MB, "
      f"peak {(peak() - base) / 1e6:.0f} MB beyond the imports' {base / 1e6:.0f} MB")
"""


def main() -> None:
    sys.path[:0] = [str(ROOT / part) for part in (".", "export", "runtime")]
    from edgelm.checkpoint import Checkpoint, save_checkpoint
    from edgelm.config import ModelConfig
    from edgelm.model import Transformer

    wanted = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    options = sys.argv[2] if len(sys.argv) > 2 else "{}"
    width = max(64, round((wanted / 18 / 12) ** (1 / 3) / 2) * 64 if wanted < 10_000_000 else 768)
    config = ModelConfig(
        vocab_size=20_000, context_length=1024, width=width,
        num_layers=max(1, (wanted - 20_000 * width) // (12 * width * width)), num_heads=width // 64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = Transformer(config)
        size = 4 * sum(weight.numel() for weight in model.parameters())
        save_checkpoint(Checkpoint(model, None), Path(folder) / "checkpoint")
        print(f"{size / 4e6:.1f} million parameters, {size / 1e6:.0f} MB")
        arguments = [f"{folder}/checkpoint", f"{folder}/model.onnx", options]
        subprocess.run(
            [sys.executable, "-c", CHILD, *arguments], check=True, env={"PYTHONPATH": ":".join(sys.path)}
        )


if __name__ == "__main__":
    main()

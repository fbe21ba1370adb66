"""How long an export takes and how much memory it needs: `python tests/benchmarks/export.py [SOURCE [OPTIONS [OUT]]]`.

Exports SOURCE, anything that `edgelm export` takes or a number of parameters (default: about 100 million), of which a
GPT-2-like checkpoint is made, in a fresh process. Prints what the exporter tells, with the seconds, those of CPU (which
tell more on a busy machine) and the peaks of resident memory since the line before: the process' own, and pages of
mapped files, which the system may take back. OPTIONS are those of `export_checkpoint` as a Python dictionary:
`export.py 100e6 "{'dtype': 'int8'}"`. The file is kept where OUT says so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

CHILD = """
import re, sys, threading, time
from pathlib import Path
import numpy, onnx, onnxruntime, onnxscript.optimizer, torch, torch.export
from edgelm.importers import load_source
from edgelm_export import export_checkpoint

KINDS = ("RssAnon", "RssFile")
def resident():
    status = Path("/proc/self/status").read_text()
    return [int(re.search(kind + r":\\s*(\\d+)", status)[1]) / 1e3 for kind in KINDS]
def watch():
    while True:
        now = resident()
        for peaks in (part, whole):
            peaks[:] = [max(pair) for pair in zip(peaks, [*now, sum(now)])]
        time.sleep(0.02)
base = resident()
part, whole = [0, 0, 0], [0, 0, 0]
threading.Thread(target=watch, daemon=True).start()
started = time.perf_counter()
def report(line):
    anonymous, mapped, both = part
    print(f"{time.perf_counter() - started:6.1f} s {time.process_time():6.1f} s of CPU "
          f"{anonymous:6.0f} + {mapped:5.0f} MB, {both:5.0f} together  {line}", flush=True)
    part[:] = [0, 0, 0]
source, out = sys.argv[1:3]
report("imports")
checkpoint = load_source(source)
report("source")
export_checkpoint(checkpoint, Path(out), report=report, **eval(sys.argv[3]))
report("done")
size = sum(path.stat().st_size for path in Path(out).parent.glob(Path(out).name + "*")) / 1e6
print(f"total {time.perf_counter() - started:.1f} s ({time.process_time():.1f} s of CPU), file {size:.0f} MB, imports "
      f"{base[0]:.0f} + {base[1]:.0f} MB, peaks {whole[0]:.0f} own, {whole[1]:.0f} mapped, {whole[2]:.0f} MB together")
"""


def main() -> None:
    sys.path[:0] = [str(ROOT / part) for part in (".", "export", "runtime")]
    source = sys.argv[1] if len(sys.argv) > 1 else "100e6"
    options = sys.argv[2] if len(sys.argv) > 2 else "{}"
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        out = sys.argv[3] if len(sys.argv) > 3 else f"{folder}/model.onnx"
        if not Path(source).exists():
            source = _checkpoint(int(float(source)), Path(folder) / "checkpoint")
        subprocess.run(
            [sys.executable, "-c", CHILD, source, out, options],
            check=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )


def _checkpoint(wanted: int, folder: Path) -> str:
    from edgelm.checkpoint import Checkpoint, save_checkpoint
    from edgelm.config import ModelConfig
    from edgelm.model import Transformer

    width = max(64, round((wanted / 18 / 12) ** (1 / 3) / 2) * 64 if wanted < 10_000_000 else 768)
    config = ModelConfig(
        vocab_size=20_000, context_length=1024, width=width,
        num_layers=max(1, (wanted - 20_000 * width) // (12 * width * width)), num_heads=width // 64,
    )  # fmt: skip
    model = Transformer(config)
    size = 4 * sum(weight.numel() for weight in model.parameters())
    save_checkpoint(Checkpoint(model, None), folder)
    print(f"{size / 4e6:.1f} million parameters, {size / 1e6:.0f} MB")
    return str(folder)


if __name__ == "__main__":
    main()

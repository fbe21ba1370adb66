"""A model in a web page: a folder of static files, complete and offline, that any web server can serve.

`edgelm.js` is the JavaScript runtime in one file, built in runtime/web; the rest of the page is written by hand.
"""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path

from edgelm_runtime.atomic_files import new_file, write_file
from edgelm_runtime.errors import ModelFileError, OptionError, OutputError
from edgelm_runtime.reports.describe import describe

PARTS = ("page.css", "page.js", "edgelm.js")


def write_page(model: str | Path, folder: str | Path, title: str | None = None) -> list[Path]:
    """Write a page that runs `model` into `folder`, which is made where it does not exist; the files written.

    The page is called `title`, by default the model's name. Files of the same names are replaced, others stay. Raises
    ModelFileError for a file that no browser could run, OutputError where the folder cannot be written.
    """
    model, folder = Path(model), Path(folder)
    about = describe(model)
    if about["format"] is None:
        raise ModelFileError(
            f"{model} is an ONNX model without edgelm's metadata", "give a file that edgelm exported"
        )
    title = model.stem if title is None else title
    if not title.strip():
        raise OptionError(f"title is {title!r}", "give some text, or leave it out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}", "choose another") from error
    written = [_copy(model, folder / "model.onnx")]
    settings = {"model": "model.onnx", "sidecar": about["sidecar"], "digest": about["digest"]}
    if about["sidecar"]:
        written.append(_copy(model.with_name(about["sidecar"]), folder / about["sidecar"]))
    assets = Path(__file__).parent
    written += [_copy(assets / name, folder / name) for name in PARTS]
    page = (assets / "index.html").read_text(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(title)).replace(
        "{{settings}}", html.escape(json.dumps(settings))
    )
    write_file(folder / "index.html", page)  # last, so that a page that is there is whole
    return [*written, folder / "index.html"]


def _copy(source: Path, target: Path) -> Path:
    if target.exists() and source.samefile(target):
        return target
    try:
        with source.open("rb") as content, new_file(target) as file:
            shutil.copyfileobj(content, file, 1 << 20)
    except OSError as error:
        raise ModelFileError(f"cannot read {source}: {error.strerror}", "check the path") from error
    return target

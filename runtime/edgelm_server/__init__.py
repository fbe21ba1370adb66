"""edgelm's server: one model file for every program that speaks HTTP with OpenAI's fields.

Needs starlette and uvicorn (`pip install 'edgelm[serve]'`). `create_app` is an ASGI application around a loaded
model and its engine; `serve` runs it until it is told to stop.
"""

from edgelm_server.app import create_app
from edgelm_server.run import serve
from edgelm_server.settings import Settings

__all__ = ["Settings", "create_app", "serve"]

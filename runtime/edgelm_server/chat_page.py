"""GET /: the chat page, one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

PAGE = Path(__file__).with_name("chat_page.html")


async def chat_page(request: Request) -> Response:
    page, policy = _page()
    return HTMLResponse(page, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


@cache
def _page() -> tuple[str, str]:
    """The page, and a policy under which its own script and style run, and nothing else."""
    page = PAGE.read_text(encoding="utf-8")
    allowed = {
        kind: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for kind, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    }
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy

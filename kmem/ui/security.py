"""Who may see and who may change: a guard before every page.

The server listens on this machine alone. Reading needs nothing more than an address of this machine
in the Host header, so that no page of another site reaches the server under a name of its own (DNS
rebinding). Changing (start, stop, resume: these run code) needs all of: the cookie that the address
with the token has set, a token in the form, and an Origin that is this server.

Every answer forbids scripts, styles, pictures and forms of others (Content-Security-Policy), so
that a text that a template failed to escape would still not run.
"""

import hashlib
import hmac
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
MOST_BYTES = 1_000_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Keys:
    """The secrets of one server: what is in the address, and what is made of it for forms."""

    def __init__(self, port: int) -> None:
        """Draw a token."""
        self.port = port
        self.token = secrets.token_urlsafe(32)
        self.cookie = f"kmem_ui_{port}"  # cookies know no ports: two servers, two names

    @property
    def form_token(self) -> str:
        """What forms carry: nobody finds the cookie from it."""
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    def knows(self, request: Request) -> bool:
        """Whether a request comes from who was given the address with the token."""
        return hmac.compare_digest(
            request.cookies.get(self.cookie, "").encode(), self.token.encode()
        )

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"


def refusal(request: Request, keys: Keys, form: dict[str, str]) -> str:
    """Why a request may change nothing; empty if it may."""
    if not keys.knows(request):
        return "open the address that `kmem ui` printed: it has the token that changes need"
    origin = request.headers.get("origin", "")
    if urlsplit(origin).netloc != request.headers.get("host") or not origin.startswith("http://"):
        return "the request came from another site"
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "the request came from another site"
    if not hmac.compare_digest(form.get("token", "").encode(), keys.form_token.encode()):
        return "the form is of an earlier server; load the page again"
    return ""


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; the last of one name counts. Larger ones than MOST_BYTES are empty."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            return {}
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=200)
    except ValueError:  # no UTF-8, or more fields than any form of ours
        return {}
    return {name: values[-1] for name, values in fields.items()}


class Guard:
    """Refuses foreign hosts, takes the token out of addresses, and adds the headers."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        await self._answer(request)(scope, receive, send_guarded)

    def _answer(self, request: Request) -> ASGIApp:
        host = request.headers.get("host", "")
        if host not in [f"{name}:{self._keys.port}" for name in LOCAL_NAMES]:
            return PlainTextResponse("This server answers on this machine alone.\n", 421)
        token = request.query_params.get("token")
        if token is None or request.method != "GET":
            return self._app
        rest = request.url.remove_query_params("token")
        place = f"{rest.path}?{rest.query}" if rest.query else rest.path
        # two slashes would lead to another server
        response = RedirectResponse(f"/{place.lstrip('/')}", 303)
        if hmac.compare_digest(token.encode(), self._keys.token.encode()):
            response.set_cookie(self._keys.cookie, token, httponly=True, samesite="strict")
        return response

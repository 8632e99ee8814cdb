"""What the two vendor SDKs share: clients, deadlines, and one clear line for every failure.

Both SDKs raise the same family of errors with the same fields (`status_code`, `response.headers`,
`body`), so one table of remedies serves both. An error of an SDK is never chained to ours: it holds
the request with the key in its headers, and the server's words unredacted.

The SDKs' own environment variables for another server are not consulted: a run asks where it says
it asks.

Covered: answers are streamed, so that long ones do not time out, unless the request says that its
server cannot: a whole answer is then one event. The request's timeout holds over all tries. Not
covered: a server that keeps a connection open with comments for ever and sends no event is cut off
only when it falls silent; an interrupt ends a whole answer only when it has come.
"""

import socket
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from kmem.errors import AnswerLost, ProviderError
from kmem.interfaces import Completion, ModelRequest, Provider
from kmem.providers.answer import Answer
from kmem.providers.keys import find_key, redact
from kmem.providers.retry import Backoff, TryAgain, retry_after_s, retrying
from kmem.records import content_hash

ClientT = TypeVar("ClientT")
EventT = TypeVar("EventT")

#: Longest wait for a connection; an answer may take as long as the request's timeout says.
CONNECT_S = 10.0
#: Longest wait for a connection when only its being possible is asked.
CHECK_S = 3.0
#: How long the list of models may take, all tries together.
LIST_S = 30.0
#: How often to look for a server of the user's own: it is there, or it was not started.
TRIES_ELSEWHERE = 3
#: What an SDK sends where a server needs no key; its constructor insists on one.
NO_KEY = "none"
#: httpx's errors for a connection that was never made, so nothing was sent. By name, for the SDKs
#: come with httpx or with httpx2.
_NEVER_CONNECTED = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError")
#: A gateway stopped waiting for a model that may have been answering, which is charged: 504 of RFC
#: 9110 section 15.6.5, 524 of Cloudflare.
_GATEWAY_TIMEOUTS = (504, 524)
_MALFORMED = (ValueError, TypeError, AttributeError)


class HttpProvider(Provider, Generic[ClientT, EventT]):
    """A provider behind a vendor's SDK.

    Subclasses say how to open a client, send a question, read an event and list models.

    Args:
        backoff: how to wait between tries.
    """

    key_name: str
    home: str  # base URL of the vendor's own server
    wire: str  # what a server must speak, in words

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._clients: dict[tuple[str, str], ClientT] = {}
        self._lock = threading.Lock()
        self._interrupted = threading.Event()

    @abstractmethod
    def _sdk(self) -> ModuleType:
        """The SDK, imported when it is first needed."""

    @abstractmethod
    def _open(self, base_url: str, key: str) -> ClientT:
        """A client without retries of its own."""

    @abstractmethod
    def _send(
        self, client: ClientT, request: ModelRequest, timeout: object
    ) -> AbstractContextManager[Iterable[EventT]]:
        """Send a question; the stream of its answer, or `at_once` where it comes whole."""

    @abstractmethod
    def _read(self, event: EventT, answer: Answer) -> None:
        """Add one event of a stream, or a whole answer, to the answer."""

    @abstractmethod
    def _list(self, client: ClientT, timeout: object) -> list[str]:
        """The models of a server."""

    def complete(self, request: ModelRequest) -> Completion:
        """See `Provider.complete`."""
        # before the SDK is imported, which takes a second or two: an interrupt may come meanwhile
        interrupted = self._interrupted
        client, base_url = self._client(request.base_url)
        # from here on, for the same reason
        deadline = time.monotonic() + request.timeout_s

        def attempt() -> Completion:
            answer = Answer(request, base_url, deadline, interrupted)
            with (
                self._in_one_line(base_url, answer, request.model),
                self._send(client, request, self._timeout(answer.left_s)) as stream,
            ):
                for event in self._well_formed(stream, base_url, answer):
                    if not answer.goes_on():
                        break
                    try:
                        self._read(event, answer)
                    except _MALFORMED:
                        # The SDKs build objects from JSON without validating it: a wrong field
                        # shows when it is read.
                        raise self._malformed(base_url, answer) from None
                    answer.begun = True
            return answer.completion(self.wire)

        seed = content_hash(request.model, *(message.text for message in request.messages))
        return retrying(
            attempt, self._backoff, seed=seed, deadline=deadline, interrupted=interrupted
        )

    def models(self, base_url: str | None = None) -> list[str]:
        """See `Provider.models`."""
        client, url = self._client(base_url)
        deadline = time.monotonic() + LIST_S

        def attempt() -> list[str]:
            with self._in_one_line(url):
                try:
                    return sorted(
                        self._list(client, self._timeout(max(0.01, deadline - time.monotonic())))
                    )
                except _MALFORMED:
                    raise self._malformed(url) from None

        return retrying(
            attempt, self._backoff, seed=url, deadline=deadline, interrupted=self._interrupted
        )

    def check(self, model: str, base_url: str | None = None) -> None:
        """See `Provider.check`: the key, and whether a server of the user's own takes connections.

        Where a proxy stands between, it is not tried.
        """
        url, _ = self._address(base_url)
        parts = urlsplit(url)
        if url == self.home or getproxies().get(parts.scheme):
            return
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=CHECK_S).close()
        except OSError:
            raise ProviderError(
                f"No server answers at {url}; start it, or correct --base-url"
            ) from None

    def interrupt(self) -> None:
        """See `Provider.interrupt`: waits end at once, answers under way at their next event."""
        with self._lock:
            interrupted, self._interrupted = self._interrupted, threading.Event()
        interrupted.set()

    def _client(self, base_url: str | None) -> tuple[ClientT, str]:
        """The client for a server, and the server's URL.

        It is the same client for all calls, for it pools connections.
        """
        url, key = self._address(base_url)
        place = (url, content_hash(key or NO_KEY))
        with self._lock:
            if place not in self._clients:
                self._clients[place] = self._open(url, key or NO_KEY)
            return self._clients[place], url

    def _address(self, base_url: str | None) -> tuple[str, str | None]:
        """A server's URL, and the key for it if there is one."""
        url = checked_url(base_url or self.home)
        key = find_key(self.key_name)
        if key is None and base_url is None:
            raise ProviderError(
                f"No key for {self.name}; set {self.key_name} in the environment or in a .env "
                "file in this directory"
            )
        return url, key

    def _timeout(self, left_s: float) -> object:
        return self._sdk().Timeout(left_s, connect=min(CONNECT_S, left_s))

    def _well_formed(
        self, stream: Iterable[EventT], base_url: str, answer: Answer
    ) -> Iterator[EventT]:
        try:
            yield from stream
        except ValueError:  # an event that is not JSON
            raise self._malformed(base_url, answer) from None

    def _malformed(self, base_url: str, answer: Answer | None = None) -> ProviderError:
        if answer is not None and answer.begun:
            return AnswerLost(
                f"{base_url} went on with something that is not {self.wire}; ask again"
            )
        return ProviderError(
            f"{base_url} sent something that is not {self.wire}; correct --base-url, or ask the "
            "server's keeper"
        )

    @contextmanager
    def _in_one_line(
        self, base_url: str, answer: Answer | None = None, model: str | None = None
    ) -> Iterator[None]:
        """Turn what an SDK raises into TryAgain, AnswerLost or ProviderError."""
        sdk = self._sdk()
        try:
            yield
        except sdk.APIConnectionError as ex:
            raise self._connection_failure(ex.__cause__ or ex, base_url, answer) from None
        except _transport_errors() as ex:  # the Anthropic SDK lets these through while it streams
            raise self._connection_failure(ex, base_url, answer) from None
        except sdk.APIError as ex:
            said = _said(ex.body, ex.message)
            if answer is not None and answer.begun:
                raise AnswerLost(f"{base_url} broke off its answer: {said}; ask again") from None
            if isinstance(ex, sdk.APIStatusError) and ex.status_code >= 400:
                raise self._status_failure(
                    ex.status_code, ex.response.headers, said, base_url, model
                ) from None
            # an error event in place of an answer
            raise TryAgain(f"{base_url} failed: {said}", "try later") from None

    def _connection_failure(
        self, cause: BaseException, base_url: str, answer: Answer | None
    ) -> Exception:
        if type(cause).__name__ in _NEVER_CONNECTED:
            if base_url == self.home:
                return TryAgain(f"No server answers at {base_url}", "check the network")
            return TryAgain(
                f"No server answers at {base_url}",
                "start it, or correct --base-url",
                tries=TRIES_ELSEWHERE,
            )
        if answer is None:
            return TryAgain(f"{base_url} dropped the connection", "try later")
        if time.monotonic() >= answer.deadline or "Timeout" in type(cause).__name__:
            return answer.timed_out()
        return AnswerLost(
            f"{base_url} dropped the connection before its answer was whole; ask again"
        )

    def _status_failure(
        self, status: int, headers: Mapping[str, str], said: str, base_url: str, model: str | None
    ) -> Exception:
        """The error for a status, with its remedy.

        What a server says to a refused key is left out: it may repeat part of the key.
        """
        subject = model or "this request"
        elsewhere = "" if base_url == self.home else f" --base-url {base_url}"
        if status == 401:
            return ProviderError(
                f"{base_url} refused the key; correct {self.key_name} in the environment or in .env"
            )
        if status == 403:
            return ProviderError(
                f"{base_url} does not allow {subject} with this key: {said}; use another model or "
                f"{self.key_name}"
            )
        if status == 402 or (status == 429 and "insufficient_quota" in said):
            return ProviderError(
                f"{base_url} says the credit is used up: {said}; top it up, or use another "
                f"{self.key_name}"
            )
        if status == 404 and model is not None:
            return ProviderError(
                f"{base_url} does not know the model {model}: {said}; `kmem models list "
                f"--provider {self.name}{elsewhere}` shows its models"
            )
        if status in _GATEWAY_TIMEOUTS:
            return AnswerLost(
                f"{base_url} gave up waiting for the model (HTTP {status}: {said}); ask again"
            )
        if status in (408, 429) or status >= 500:
            reason = "limits the rate of requests" if status == 429 else "failed"
            remedy = "wait, or use fewer writers at once" if status == 429 else "try later"
            return TryAgain(
                f"{base_url} {reason} (HTTP {status}: {said})", remedy, retry_after_s(headers)
            )
        return ProviderError(
            f"{base_url} refused {subject} (HTTP {status}): {said}; change what it names, or "
            "correct --base-url"
        )


def checked_url(url: str) -> str:
    """A base URL without its last slash.

    Raises:
        ProviderError: if it is none, or holds a password or a query, which would be archived.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ProviderError(
            f"--base-url {url.split('@')[-1]} is not a URL; it looks like http://localhost:8000/v1"
        )
    if parts.username or parts.password or parts.query:
        raise ProviderError(
            f"The base URL of {parts.hostname} holds a password or a query; give the key in the "
            "environment instead"
        )
    return url.rstrip("/")


def _transport_errors() -> tuple[type[Exception], ...]:
    """The base class of errors on the way, of the httpx that the SDK has loaded."""
    return tuple(
        sys.modules[name].RequestError for name in ("httpx2", "httpx") if name in sys.modules
    )


def _said(body: object, otherwise: str) -> str:
    """A server's own words on an error, in one line, short and without keys."""
    error = body.get("error", body) if isinstance(body, dict) else None
    words = otherwise
    if isinstance(error, dict):
        words = ": ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    elif isinstance(error, str):
        words = error
    line = " ".join(redact(words or otherwise).split())
    return line if len(line) <= 200 else line[:197] + "..."

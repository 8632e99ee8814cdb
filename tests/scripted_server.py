"""A local HTTP server that speaks both wire formats, OpenAI's and Anthropic's, by a script.

    def play(turn: Turn) -> Reply:
        if "repair" in turn.system:
            return Reply("```python\\n...\\n```")
        return Reply(status=429, retry_after="0")

    with ScriptedServer(play) as server:
        # or server.url_anthropic
        request = ModelRequest("any-name", messages, 1000, base_url=server.url_openai)
        ...
        assert [turn.model for turn in server.requests] == ["any-name", "any-name"]

`play` is called once per question, one at a time, in order of arrival; `turn.number` counts from 0.
`in_order(reply, reply, ...)` makes a `play` out of a list (the last one repeats). An exception in
`play` is answered with status 500 and raised again when the `with` ends. Tokens are counted by one
rule, `count_tokens`; like a real server this one cuts an answer at the asked maximum and says so,
unless the Reply says otherwise. Both servers list `models` under /v1/models. With `key`, a request
must carry it; without, any key or none will do.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from kmem.interfaces import Message, StopReason

#: The SSE chunks an answer is sent in are so long, in characters.
PIECE = 200


def count_tokens(text: str) -> int:
    """The scripted models' tokens: one for every four bytes begun."""
    return -(-len(text.encode(errors="surrogatepass")) // 4)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One question as it arrived."""

    number: int  # how many questions arrived before it
    wire: str  # openai or anthropic
    model: str
    # the system message first, if there was one, whatever the wire format
    messages: tuple[Message, ...]
    max_output_tokens: int
    stream: bool
    temperature: float | None
    effort: str | None
    headers: dict[str, str] = field(repr=False)  # names in lower case
    body: dict[str, object] = field(repr=False)  # the JSON as it came

    @property
    def system(self) -> str:
        """Text of the system message; empty if there was none."""
        return "".join(message.text for message in self.messages if message.role == "system")

    @property
    def user(self) -> str:
        """Text of the last message."""
        return self.messages[-1].text

    @property
    def input_tokens(self) -> int:
        """What the server will say the question had, unless the Reply says otherwise."""
        return sum(count_tokens(message.text) for message in self.messages)


@dataclass(frozen=True)
class Reply:
    """What the scripted model does with one question: by default it answers `text` and stops.

    The bad ones: stop=REFUSAL; stop=LENGTH (cut off by itself); status other than 200; `raw` (bytes
    sent in place of an answer); `delay_s` (slow); `drop_after` (hangs up after so many pieces);
    `endless` (repeats `text` until the client hangs up).
    """

    text: str = ""
    stop: StopReason = StopReason.END
    input_tokens: int | None = None  # None: counted
    output_tokens: int | None = None  # None: counted
    reports_usage: bool = True
    thinking: str = ""  # sent as reasoning before the answer, and counted as output
    status: int = 200
    error: str = "scripted failure"  # the message that goes with the status
    error_code: str | None = None
    retry_after: str | None = None
    raw: bytes | None = None
    delay_s: float = 0.0
    drop_after: int | None = None
    endless: bool = False


Play = Callable[[Turn], Reply]


def in_order(*replies: Reply) -> Play:
    """Play these replies one after the other; the last one for ever."""
    return lambda turn: replies[min(turn.number, len(replies) - 1)]


class ScriptedServer(AbstractContextManager["ScriptedServer"]):
    """See the module docstring.

    `requests` holds every question in order of arrival, `replies` what was answered to each.
    """

    def __init__(
        self,
        play: Play,
        *,
        models: Sequence[str] = ("scripted-large", "scripted-small"),
        key: str | None = None,
    ) -> None:
        self.play = play
        self.models = tuple(models)
        self.key = key
        self.requests: list[Turn] = []
        self.replies: list[Reply] = []
        self.failure: BaseException | None = None
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url_openai(self) -> str:
        """Base URL for the OpenAI SDK, which adds /chat/completions and /models."""
        return f"{self.url}/v1"

    @property
    def url_anthropic(self) -> str:
        """Base URL for the Anthropic SDK, which adds /v1/messages and /v1/models."""
        return self.url

    def answer(self, make_turn: Callable[[int], Turn]) -> tuple[Turn, Reply]:
        """Record a question and ask the script; called by the handler threads."""
        with self._lock:
            turn = make_turn(len(self.requests))
            self.requests.append(turn)
            try:
                reply = self.play(turn)
            # whatever the script raises must fail the test, not only its server thread
            except BaseException as ex:  # noqa: BLE001
                self.failure = self.failure or ex
                reply = Reply(status=500, error=f"the script raised {type(ex).__name__}: {ex}")
            self.replies.append(reply)
            return turn, reply

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.failure is not None and value is None:
            raise self.failure


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news; anything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Dropped(Exception):
    """The script hangs up."""


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what arrived is in `server.requests`."""

        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/v1/models":
                return self._send_error(
                    "openai", Reply(status=404, error=f"no such path {self.path}")
                )
            wire = "anthropic" if "anthropic-version" in self.headers else "openai"
            if not self._has_key():
                return self._send_error(
                    wire, Reply(status=401, error=f"invalid key {self._given_key()}")
                )
            return self._send_json(200, _model_list(wire, server.models))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            wire = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}.get(
                self.path.split("?")[0]
            )
            if wire is None:
                return self._send_error(
                    "openai", Reply(status=404, error=f"no such path {self.path}")
                )
            headers = {name.lower(): value for name, value in self.headers.items()}
            turn, reply = server.answer(lambda number: _turn(number, wire, headers, body))
            if not self._has_key():
                reply = Reply(status=401, error=f"invalid key {self._given_key()}")
            if reply.delay_s and server.closing.wait(reply.delay_s):
                return None
            if reply.status != 200:
                return self._send_error(wire, reply)
            if reply.raw is not None:
                return self._send(
                    200, reply.raw, "text/event-stream" if turn.stream else "application/json"
                )
            try:
                return (
                    self._send_stream(turn, reply)
                    if turn.stream
                    else self._send_json(200, _whole(turn, reply))
                )
            except (_Dropped, BrokenPipeError, ConnectionResetError):
                self.close_connection = True
                return None

        def _given_key(self) -> str:
            """The key that a request carries.

            Anthropic's SDK sends its key as a bearer from version 2 on, and before that in a header
            of its own.
            """
            return self.headers.get("x-api-key") or self.headers.get(
                "authorization", ""
            ).removeprefix("Bearer ")

        def _has_key(self) -> bool:
            return server.key is None or self._given_key() == server.key

        def _send_stream(self, turn: Turn, reply: Reply) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in _events(turn, reply):
                if server.closing.is_set():
                    raise _Dropped
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def _send_error(self, wire: str, reply: Reply) -> None:
            if wire == "anthropic":
                data = {
                    "type": "error",
                    "error": {"type": reply.error_code or "scripted_error", "message": reply.error},
                }
            else:
                data = {
                    "error": {
                        "message": reply.error,
                        "type": "scripted_error",
                        "param": None,
                        "code": reply.error_code,
                    }
                }
            self._send_json(reply.status, data, retry_after=reply.retry_after)

        def _send_json(self, status: int, data: object, retry_after: str | None = None) -> None:
            self._send(status, json.dumps(data).encode(), "application/json", retry_after)

        def _send(
            self, status: int, data: bytes, kind: str, retry_after: str | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            if retry_after is not None:
                self.send_header("retry-after", retry_after)
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _turn(number: int, wire: str, headers: dict[str, str], body: dict) -> Turn:
    messages = [Message(entry["role"], _text(entry["content"])) for entry in body["messages"]]
    if wire == "anthropic" and "system" in body:
        messages.insert(0, Message("system", _text(body["system"])))
    effort = (
        body.get("output_config", {}).get("effort")
        if wire == "anthropic"
        else body.get("reasoning_effort")
    )
    return Turn(
        number=number,
        wire=wire,
        model=body["model"],
        messages=tuple(messages),
        max_output_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or 10**9,
        stream=bool(body.get("stream")),
        temperature=body.get("temperature"),
        effort=effort,
        headers=headers,
        body=body,
    )


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


@dataclass(frozen=True)
class _Cut:
    """An answer as the asked maximum leaves it, why it stopped, and its tokens."""

    text: str
    stop: StopReason
    input_tokens: int
    output_tokens: int


def _cut(turn: Turn, reply: Reply) -> _Cut:
    room = turn.max_output_tokens - count_tokens(reply.thinking)
    text, stop = reply.text, reply.stop
    if count_tokens(text) > room:
        text, stop = text.encode()[: max(0, room) * 4].decode(errors="ignore"), StopReason.LENGTH
    output = min(count_tokens(reply.thinking), turn.max_output_tokens) + count_tokens(text)
    return _Cut(
        text,
        stop,
        turn.input_tokens if reply.input_tokens is None else reply.input_tokens,
        output if reply.output_tokens is None else reply.output_tokens,
    )


def _pieces(turn: Turn, reply: Reply, text: str) -> Iterator[str]:
    if reply.endless:
        while True:
            yield reply.text
    for number, start in enumerate(range(0, len(text), PIECE)):
        if reply.drop_after == number:
            raise _Dropped
        yield text[start : start + PIECE]
    if reply.drop_after is not None:
        raise _Dropped


def _events(turn: Turn, reply: Reply) -> Iterator[bytes]:
    return (
        _anthropic_events(turn, reply) if turn.wire == "anthropic" else _openai_events(turn, reply)
    )


def _openai_events(turn: Turn, reply: Reply) -> Iterator[bytes]:
    cut = _cut(turn, reply)

    def event(data: dict[str, object]) -> bytes:
        base = {
            "id": f"chatcmpl-{turn.number}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": turn.model,
        }
        return f"data: {json.dumps(base | data)}\n\n".encode()

    def delta(fields: dict[str, str], finish: str | None = None) -> bytes:
        return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})

    yield delta({"role": "assistant"})
    for piece in _pieces(turn, reply, cut.text):
        yield delta({"refusal" if cut.stop is StopReason.REFUSAL else "content": piece})
    yield delta({}, _OPENAI_FINISH[cut.stop])
    if reply.reports_usage and (turn.body.get("stream_options") or {}).get("include_usage"):
        yield event({"choices": [], "usage": _openai_usage(cut)})
    yield b"data: [DONE]\n\n"


def _anthropic_events(turn: Turn, reply: Reply) -> Iterator[bytes]:
    cut = _cut(turn, reply)

    def event(kind: str, **data: object) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind} | data)}\n\n".encode()

    message = _anthropic_message(
        turn, [], None, cut.input_tokens if reply.reports_usage else 0, int(reply.reports_usage)
    )
    yield event("message_start", message=message)
    yield event("ping")
    place = 0
    if reply.thinking:
        yield event(
            "content_block_start",
            index=0,
            content_block={"type": "thinking", "thinking": "", "signature": ""},
        )
        yield event(
            "content_block_delta",
            index=0,
            delta={"type": "thinking_delta", "thinking": reply.thinking},
        )
        yield event("content_block_stop", index=0)
        place = 1
    if cut.text or reply.endless or reply.drop_after is not None:
        yield event("content_block_start", index=place, content_block={"type": "text", "text": ""})
        for piece in _pieces(turn, reply, cut.text):
            yield event(
                "content_block_delta", index=place, delta={"type": "text_delta", "text": piece}
            )
        yield event("content_block_stop", index=place)
    final = {"output_tokens": cut.output_tokens} if reply.reports_usage else {"output_tokens": 0}
    yield event(
        "message_delta",
        delta={"stop_reason": _ANTHROPIC_STOP[cut.stop], "stop_sequence": None},
        usage=final,
    )
    yield event("message_stop")


def _whole(turn: Turn, reply: Reply) -> dict[str, object]:
    if reply.drop_after is not None:
        raise _Dropped
    cut = _cut(turn, reply)
    if turn.wire == "anthropic":
        content = [{"type": "text", "text": cut.text}] if cut.text else []
        return _anthropic_message(
            turn, content, _ANTHROPIC_STOP[cut.stop], cut.input_tokens, cut.output_tokens
        )
    refused = cut.stop is StopReason.REFUSAL
    message = {
        "role": "assistant",
        "content": None if refused else cut.text,
        "refusal": cut.text if refused else None,
    }
    answer = {
        "id": f"chatcmpl-{turn.number}",
        "object": "chat.completion",
        "created": 0,
        "model": turn.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": _OPENAI_FINISH[cut.stop],
                "logprobs": None,
            }
        ],
    }
    return answer | ({"usage": _openai_usage(cut)} if reply.reports_usage else {})


def _openai_usage(cut: _Cut) -> dict[str, int]:
    return {
        "prompt_tokens": cut.input_tokens,
        "completion_tokens": cut.output_tokens,
        "total_tokens": cut.input_tokens + cut.output_tokens,
    }


def _anthropic_message(
    turn: Turn, content: list, stop_reason: str | None, input_tokens: int, output_tokens: int
) -> dict[str, object]:
    return {
        "id": f"msg_{turn.number}",
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens},
    }


def _model_list(wire: str, models: Sequence[str]) -> dict[str, object]:
    if wire == "anthropic":
        entries = [
            {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": "2026-01-01T00:00:00Z",
            }
            for name in models
        ]
        return {"data": entries, "has_more": False, "first_id": models[0], "last_id": models[-1]}
    return {
        "object": "list",
        "data": [
            {"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in models
        ],
    }


#: A refusal by the model itself ends with "stop" and its text under `refusal`; one by OpenAI's
#: filter ends with "content_filter".
_OPENAI_FINISH = {StopReason.END: "stop", StopReason.LENGTH: "length", StopReason.REFUSAL: "stop"}
_ANTHROPIC_STOP = {
    StopReason.END: "end_turn",
    StopReason.LENGTH: "max_tokens",
    StopReason.REFUSAL: "refusal",
}

"""The `anthropic` provider: Claude through Anthropic's SDK.

With a base URL it asks a relay that speaks the Messages API.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from kmem.interfaces import ModelRequest, StopReason
from kmem.providers.answer import Answer, at_once
from kmem.providers.http import HttpProvider

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message, MessageDeltaUsage, RawMessageStreamEvent, Usage


class AnthropicProvider(HttpProvider["Anthropic", "RawMessageStreamEvent | Message"]):
    """Anthropic's models. The system message goes where the Messages API has it, in `system`."""

    name = "anthropic"
    key_name = "ANTHROPIC_API_KEY"
    home = "https://api.anthropic.com"
    wire = "Anthropic's Messages API"

    def _sdk(self) -> ModuleType:
        import anthropic  # half a second that no other command should pay

        return anthropic

    def _open(self, base_url: str, key: str) -> "Anthropic":
        return self._sdk().Anthropic(api_key=key, base_url=base_url, max_retries=0)

    def _send(
        self, client: "Anthropic", request: ModelRequest, timeout: object
    ) -> "AbstractContextManager[Iterable[RawMessageStreamEvent | Message]]":
        settings: dict[str, object] = {
            "model": request.model,
            "messages": _turns(request),
            "max_tokens": request.max_output_tokens,
            "timeout": timeout,
        }
        system = "\n\n".join(
            message.text for message in request.messages if message.role == "system"
        )
        if system:
            settings["system"] = [_cached(system)]
        # In the body as they are: SDK 2 has no parameter for a temperature, which only its older
        # models take, and SDK 0 none for effort.
        extra: dict[str, object] = {}
        if request.temperature is not None:
            extra["temperature"] = request.temperature
        if request.effort is not None:
            extra["output_config"] = {"effort": request.effort}
        create = client.messages.create
        if not request.stream:
            return at_once(lambda: create(extra_body=extra, **settings))
        return create(stream=True, extra_body=extra, **settings)

    def _read(self, event: "RawMessageStreamEvent | Message", answer: Answer) -> None:
        if not event.type:  # the SDK makes a message of any object
            raise ValueError("an event without a type")
        if event.type == "message":
            answer.model = event.model
            _read_usage(event.usage, answer)
            answer.write("".join(block.text for block in event.content if block.type == "text"))
            if event.stop_reason is not None:
                answer.stop = _STOPS.get(event.stop_reason, StopReason.END)
        elif event.type == "message_start":
            answer.model = event.message.model
            _read_usage(event.message.usage, answer)
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            answer.write(event.delta.text)
        elif event.type == "message_delta":
            _read_usage(event.usage, answer)
            if event.delta.stop_reason is not None:
                answer.stop = _STOPS.get(event.delta.stop_reason, StopReason.END)

    def _list(self, client: "Anthropic", timeout: object) -> list[str]:
        return [model.id for model in client.models.list(limit=1000, timeout=timeout)]


def _cached(text: str) -> dict[str, object]:
    """A block of text up to the end of which the prompt is kept for the questions that follow.

    Source: `cache_control` of TextBlockParam in the SDK's types; for five minutes from its last
    use. A prompt that is too short to be cached is taken as it is.
    """
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _turns(request: ModelRequest) -> list[dict[str, object]]:
    """The messages beside the system's; the first one is cut where its stable part ends."""
    turns: list[dict[str, object]] = [
        {"role": message.role, "content": message.text}
        for message in request.messages
        if message.role != "system"
    ]
    if request.stable_chars and turns:
        text = str(turns[0]["content"])
        stable, rest = text[: request.stable_chars], text[request.stable_chars :]
        tail = [{"type": "text", "text": rest}] if rest.strip() else []
        turns[0]["content"] = [_cached(stable), *tail]
    return turns


def _read_usage(usage: "Usage | MessageDeltaUsage", answer: Answer) -> None:
    """Add the counts of an event, whose input is the sum of three kinds.

    Counts are cumulative and may be left out where they have not changed.
    """
    kinds = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
    answer.input_tokens = max(answer.input_tokens or 0, sum(tokens or 0 for tokens in kinds))
    answer.output_tokens = usage.output_tokens
    answer.written_tokens = max(answer.written_tokens, usage.cache_creation_input_tokens or 0)
    answer.cached_tokens = max(answer.cached_tokens, usage.cache_read_input_tokens or 0)


#: Source: `StopReason` in the SDK's types; every other reason means that the model was done.
_STOPS = {
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.REFUSAL,
}

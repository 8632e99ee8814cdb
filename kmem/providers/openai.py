"""The `openai` provider: OpenAI, and every server that speaks its chat completions.

Such servers are vLLM, SGLang, Ollama or a relay; all are asked through OpenAI's SDK. With a base
URL no key is needed; OPENAI_API_KEY is sent there if it is set, for a relay wants one. Chat
completions rather than OpenAI's newer Responses, because that is what all of them speak.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kmem.interfaces import ModelRequest, StopReason
from kmem.providers.answer import Answer, at_once
from kmem.providers.http import HttpProvider

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionChunk


class OpenAIProvider(HttpProvider["OpenAI", "ChatCompletionChunk | ChatCompletion"]):
    """OpenAI's models, or with a base URL those of a compatible server."""

    name = "openai"
    key_name = "OPENAI_API_KEY"
    home = "https://api.openai.com/v1"
    wire = "OpenAI's chat completions"

    def _sdk(self) -> ModuleType:
        import openai  # half a second that no other command should pay

        return openai

    def _open(self, base_url: str, key: str) -> "OpenAI":
        return self._sdk().OpenAI(api_key=key, base_url=base_url, max_retries=0)

    def _send(
        self, client: "OpenAI", request: ModelRequest, timeout: object
    ) -> "AbstractContextManager[Iterable[ChatCompletionChunk | ChatCompletion]]":
        settings: dict[str, object] = {
            "model": request.model,
            "messages": [
                {"role": message.role, "content": message.text} for message in request.messages
            ],
            "timeout": timeout,
            limit_name(str(client.base_url)): request.max_output_tokens,
        }
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.effort is not None:
            settings["reasoning_effort"] = request.effort
        create = client.chat.completions.create
        if not request.stream:
            return at_once(lambda: create(**settings))
        return create(stream=True, stream_options={"include_usage": True}, **settings)

    def _read(self, event: "ChatCompletionChunk | ChatCompletion", answer: Answer) -> None:
        answer.model = event.model or answer.model
        if event.usage is not None:
            answer.input_tokens = event.usage.prompt_tokens
            answer.output_tokens = event.usage.completion_tokens
            # prefixes are cached unasked; servers without that leave the details out
            details = event.usage.prompt_tokens_details
            if details is not None:
                answer.cached_tokens = details.cached_tokens or 0
                answer.written_tokens = getattr(details, "cache_write_tokens", None) or 0
        for choice in event.choices:
            said = choice.delta if hasattr(choice, "delta") else choice.message
            answer.write(said.content or "")
            if said.refusal:
                answer.write(said.refusal)
                answer.refused = True
            if choice.finish_reason is not None:
                answer.stop = _STOPS.get(choice.finish_reason, StopReason.END)

    def _list(self, client: "OpenAI", timeout: object) -> list[str]:
        return [model.id for model in client.models.list(timeout=timeout)]


def limit_name(base_url: str) -> str:
    """The parameter that limits output.

    OpenAI's reasoning models refuse max_tokens, some compatible servers (Ollama) know nothing else.
    """
    host = urlsplit(base_url).hostname or ""
    if f".{host}".endswith((".api.openai.com", ".openai.azure.com")):
        return "max_completion_tokens"
    return "max_tokens"


#: Source: `finish_reason` of ChatCompletionChunk in the SDK; every other reason means that the
#: model was done.
_STOPS = {"length": StopReason.LENGTH, "content_filter": StopReason.REFUSAL}

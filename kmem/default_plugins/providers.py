"""The built-in language-model providers.

openai (and servers that speak as it does), anthropic, command (any program), and replay (answers
from a file, for tests).
"""

from collections.abc import Callable

from kmem import hookimpl
from kmem.interfaces import Provider
from kmem.providers.anthropic import AnthropicProvider
from kmem.providers.command import CommandProvider
from kmem.providers.openai import OpenAIProvider
from kmem.providers.recorded import RecordingsProvider


@hookimpl
def register_providers(register: Callable[[Provider], None]) -> None:
    for provider in (
        OpenAIProvider(),
        AnthropicProvider(),
        CommandProvider(),
        RecordingsProvider(),
    ):
        register(provider)

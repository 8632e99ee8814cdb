"""The built-in language-model providers: openai (and compatible servers), anthropic, command,
replay.
"""

from collections.abc import Callable

from kmem.hookspecs import hookimpl
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

"""A language-model provider that gives up when the minutes of a run are over."""

from collections.abc import Callable
from dataclasses import replace

from kmem.errors import ProviderError
from kmem.interfaces import Completion, ModelRequest, Provider


class PunctualProvider(Provider):
    """Another provider, whose calls end with the run's clock at the latest.

    `complete` raises ProviderError at once if the clock has run out; whoever asked looks at the clock to tell that from a fault.
    """

    def __init__(self, provider: Provider, seconds_left: Callable[[], float]) -> None:
        self._provider, self._seconds_left = provider, seconds_left
        self.name, self.counts_tokens = provider.name, provider.counts_tokens

    def complete(self, request: ModelRequest) -> Completion:
        left_s = self._seconds_left()
        if left_s <= 0:
            raise ProviderError(f"The minutes of this run are over, so {request.model} is not asked; raise --minutes")
        return self._provider.complete(replace(request, timeout_s=min(request.timeout_s, left_s)))

    def models(self, base_url: str | None = None) -> list[str]:
        return self._provider.models(base_url)

    def interrupt(self) -> None:
        self._provider.interrupt()

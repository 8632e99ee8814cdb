"""A language-model provider as one run sees it: so many questions at once, none beyond its minutes, none after it was interrupted."""

import threading
from collections.abc import Callable
from dataclasses import replace

from kmem.errors import ProviderError
from kmem.interfaces import Completion, ModelRequest, Provider
from kmem.parallel import AT_ONCE


class PunctualProvider(Provider):
    """Another provider, asked AT_ONCE questions at once at most, whose calls end with the run's clock at the latest.

    `complete` raises ProviderError at once if the clock has run out (whoever asked looks at the clock to tell that from a fault) and after
    `interrupt`, which is for good here: it ends the run, not the provider.
    """

    def __init__(self, provider: Provider, seconds_left: Callable[[], float]) -> None:
        self._provider, self._seconds_left = provider, seconds_left
        self._slots = threading.Semaphore(AT_ONCE)
        self._ended = False
        self.name, self.counts_tokens = provider.name, provider.counts_tokens

    def complete(self, request: ModelRequest) -> Completion:
        with self._slots:
            left_s = self._seconds_left()
            if self._ended:
                raise ProviderError(f"The run was interrupted, so {request.model} is not asked")
            if left_s <= 0:
                raise ProviderError(f"The minutes of this run are over, so {request.model} is not asked; raise --minutes")
            return self._provider.complete(replace(request, timeout_s=min(request.timeout_s, left_s)))

    def models(self, base_url: str | None = None) -> list[str]:
        return self._provider.models(base_url)

    def interrupt(self) -> None:
        self._ended = True
        self._provider.interrupt()

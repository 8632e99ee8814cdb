"""The kernels of one module compiled by several processes at once, into Triton's cache on disk.

    with compiled_together(ask_for_cores):
        model(*inputs)

Triton puts the kernels of the forward off (its AsyncCompileMode). Once all are known, the process
forks helpers, as many as there are idle cores, and all take the next kernel that nobody has begun.
Then the process finds what helpers compiled in the cache; a kernel that a helper could not compile
fails in the process once more.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from triton import AsyncCompileMode

#: Kernels for which another process is worth its fork; each takes a quarter of a second.
_KERNELS_PER_PROCESS = 2
#: Kernels that are shared out at most: their numbers fit into a pipe that nobody reads yet.
_MOST_KERNELS = 1024
_NUMBER_BYTES = 2


@contextmanager
def compiled_together(ask_for_cores: Callable[[int], int]) -> Iterator[None]:
    """Have the kernels that are launched in the block compiled at its end, all at once.

    Raises whatever the first of them raises that cannot be compiled, in the order of launches.

    Args:
        ask_for_cores: how many more cores, of so many, may be used just now.
    """
    kernels = _Kernels(ask_for_cores)
    with AsyncCompileMode(kernels):
        try:
            yield
            kernels.compile_all()
        finally:
            kernels.give_up()


class _Kernel(Future):
    """A kernel that is compiled when its turn comes, or somebody asks for it before."""

    def __init__(self, compile_kernel: Callable[[], Any]) -> None:
        super().__init__()
        self._compile_kernel = compile_kernel

    def compile(self) -> None:
        if not self.done():
            try:
                self.set_result(self._compile_kernel())
            # raised again for whoever asks for the kernel
            except Exception as ex:  # noqa: BLE001
                self.set_exception(ex)

    def result(self, timeout: float | None = None) -> Any:
        self.compile()
        return super().result(timeout)


class _Kernels(Executor):
    """What Triton would have compiled in the background, in order."""

    def __init__(self, ask_for_cores: Callable[[int], int]) -> None:
        self._ask_for_cores = ask_for_cores
        self._kernels: list[_Kernel] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> _Kernel:
        self._kernels.append(_Kernel(lambda: fn(*args, **kwargs)))
        return self._kernels[-1]

    def compile_all(self) -> None:
        """Compile every kernel, on idle cores too. Raises what the first raises that cannot be."""
        wanted = len(self._kernels) // _KERNELS_PER_PROCESS - 1
        cores = self._ask_for_cores(wanted) if wanted > 0 else 0
        if cores:
            _share_out(self._kernels[:_MOST_KERNELS], cores)
        for kernel in self._kernels:
            kernel.result()

    def give_up(self) -> None:
        """Nobody waits for what was not compiled."""
        for kernel in self._kernels:
            if not kernel.done():
                kernel.set_exception(RuntimeError("the forward did not come to its end"))


def _share_out(kernels: list[_Kernel], helpers: int) -> None:
    """Compile kernels here and in so many helpers, which leave them in the cache."""
    source, sink = os.pipe()
    numbers = range(len(kernels))
    os.write(sink, b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers))
    os.close(sink)
    forked = [_fork(lambda: _compile_by_turns(kernels, source)) for _ in range(helpers)]
    _compile_by_turns(kernels, source)
    os.close(source)
    for helper in forked:
        os.waitpid(helper, 0)


def _compile_by_turns(kernels: list[_Kernel], source: int) -> None:
    """Compile the kernels whose numbers nobody else has read."""
    while number := os.read(source, _NUMBER_BYTES):
        kernels[int.from_bytes(number, "big")].compile()


def _fork(work: Callable[[], None]) -> int:
    """A process that does some work and ends without a word, as this one's child."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)

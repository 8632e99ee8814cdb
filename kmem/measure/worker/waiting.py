"""Programs of one launch that wait for each other, taken in turns by Triton's interpreter.

Runs inside the worker, from a copy of this file, and only where kernels are interpreted. The
interpreter runs one program after another, so that a program which waits for a later one would wait
forever. Here it stops where it polls, and others run meanwhile, as on a GPU, where they run at
once.

Covered: polls by atomic operations, which is what Triton's memory model has for this (a lock, a
counter of programs that arrived). Not covered: polls by plain loads, which a compiler may move out
of the loop.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from itertools import product
from threading import Semaphore, Thread

from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, interpreter_builder

_start_new_thread = threading._start_new_thread
_POLLS = ("create_atomic_cas", "create_atomic_rmw")
#: Polls in vain of each program, after which no other will change what they see. A program that
#: adds nothing, or takes the same maximum again, waits for nobody: it must be able to go on.
_PATIENCE = 1000

Place = tuple[int, int, int]


class _Abandoned(BaseException):
    """Ends the thread of a program whose launch has failed."""


class _Paused:
    """A program that runs in a thread of its own, while nothing else does, and may stop midway."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._go_on, self._stopped = Semaphore(0), Semaphore(0)
        self._abandoned = False
        self.is_done = False
        self.error: BaseException | None = None
        # NumPy keeps how it treats an overflow in the context
        self._thread = Thread(target=copy_context().run, args=(self._run, run), daemon=True)
        # not one that the candidate started: who counts those does not see it
        counted, threading._start_new_thread = threading._start_new_thread, _start_new_thread
        self._thread.start()
        threading._start_new_thread = counted

    def _run(self, run: Callable[[], None]) -> None:
        self._go_on.acquire()
        try:
            if not self._abandoned:
                run()
        except _Abandoned:
            pass
        except BaseException as ex:  # noqa: BLE001 - raised again by whoever runs the launch
            self.error = ex
        self.is_done = True
        self._stopped.release()

    def advance(self) -> None:
        """Run it until it ends or polls in vain."""
        self._go_on.release()
        self._stopped.acquire()
        if self.is_done:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Let others run; called by the program itself."""
        self._stopped.release()
        self._go_on.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        self._abandoned = True
        self._go_on.release()
        self._thread.join()


class _Programs:
    """Stands for a kernel's function during one launch, and is called once for each program.

    A program runs where it is called until it polls in vain; the others that then run, in threads,
    are not run again when their call comes.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        # what Triton asks of the function
        self.__name__, self.__globals__ = function.__name__, function.__globals__
        self.__signature__ = inspect.signature(function)
        self.__wrapped__ = function
        self._arguments: dict[str, object] = {}
        self._begun: set[Place] = set()
        self._unbegun: Iterator[Place] | None = None
        self._paused: dict[Place, _Paused] = {}
        self._at: Place | None = None
        self._polled: dict[Place, object] = {}  # what each polled last, and saw
        self._in_vain = 0  # polls in a row that saw nothing new

    def __call__(self, **arguments: object) -> None:
        self._arguments = arguments
        place = interpreter_builder.grid_idx
        if place not in self._begun:
            self._begin(place)
        while place in self._paused:
            self._advance(place)
            if place in self._paused:
                self._let_others(place)

    def _begin(self, place: Place) -> None:
        self._begun.add(place)
        self._in_vain = 0
        self._at = place
        self._function(**self._arguments)

    def poll(self, seen: object) -> None:
        """A program carried out an atomic operation, and may be waiting.

        Args:
            seen: the operation and its result; twice the same is a poll in vain.

        Raises RuntimeError: every program of the launch waits.
        """
        place = self._at
        if self._polled.get(place) != seen:
            self._polled[place] = seen
            self._in_vain = 0
            return
        self._in_vain += 1
        if self._in_vain > _PATIENCE * (len(self._paused) + 1):
            raise RuntimeError(
                f"the programs of {self.__name__} wait for each other, and none goes on"
            )
        if place in self._paused:
            self._paused[place].stop()
            self._set(place)
        else:
            self._let_others(place)

    def _let_others(self, place: Place) -> None:
        """Another program runs until it ends or polls in vain; then it is this one's turn again."""
        unbegun = self._next_unbegun()
        if unbegun is not None:
            self._paused[unbegun] = _Paused(lambda: self._begin(unbegun))
            self._advance(unbegun)
        else:
            others = [other for other in self._paused if other != place]
            if others:
                self._advance(others[0])
        self._set(place)

    def _advance(self, place: Place) -> None:
        self._set(place)
        paused = self._paused.pop(place)
        self._paused[place] = paused  # last in turn
        try:
            paused.advance()
        finally:
            if paused.is_done:
                del self._paused[place]
                self._in_vain = 0

    def _set(self, place: Place) -> None:
        self._at = interpreter_builder.grid_idx = place

    def _next_unbegun(self) -> Place | None:
        if self._unbegun is None:
            self._unbegun = product(*map(range, interpreter_builder.grid_dim))
        return next((place for place in self._unbegun if place not in self._begun), None)

    def end(self) -> None:
        """End the threads of programs that were left midway."""
        for paused in self._paused.values():
            paused.abandon()


def let_programs_wait() -> None:
    """Change the interpreter of this process; not undone."""
    launch = GridExecutor.__call__
    at_work: list[_Programs] = []

    def call(executor, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
        function = executor.fn
        programs = executor.fn = _Programs(function)
        at_work.append(programs)
        try:
            return launch(executor, *args, **kwargs)
        finally:
            at_work.pop()
            programs.end()
            executor.fn = function

    def watch(name: str) -> None:
        original = getattr(InterpreterBuilder, name)

        def atomic(builder, *args):  # noqa: ANN001, ANN002, ANN202 - a pass-through
            result = original(builder, *args)
            if at_work:
                values = [
                    value.data.tobytes() if hasattr(value, "data") else value for value in args
                ]
                at_work[-1].poll((name, values, result.data.tobytes()))
            return result

        setattr(InterpreterBuilder, name, atomic)

    GridExecutor.__call__ = call
    for name in _POLLS:
        watch(name)

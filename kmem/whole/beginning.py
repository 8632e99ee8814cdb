"""The model of a run held to itself, and timed, while its first pieces are tried.

Nothing of it decides which piece comes first, and it takes a minute: a process must load torch and
capture the model, and torch.compile must compile it. What is chosen by timing is left for the end
(holding.py), for it keeps the GPU from every piece meanwhile.
"""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from subprocess import Popen
from types import TracebackType

from kmem.errors import ProblemError
from kmem.whole.holding import OpenModel, question_about, with_baselines
from kmem.whole.proving.proof import Proof, Question, prove, read_proof
from kmem.whole.state import ModelState

#: For each of the two questions, in seconds.
_LIMIT_S = 240.0
#: Of the time that is left, where everything has to end in time.
_SHARE = 0.4
#: What a process takes beside compiling, in seconds.
_BESIDE_COMPILING_S = 30.0
#: Where the model without kernels lies, while it is composed with some elsewhere.
_PLACE = "as_it_is"
#: The compiled way that is timed here: compiling it leaves the GPU to others.
_WAY = "compile"


class Beginning:
    """Begun when it is entered; ended, with what it asks, when it is left."""

    def __init__(self, model: OpenModel, state: ModelState, spent_s: float) -> None:
        """Nothing is asked yet.

        Args:
            spent_s: seconds that the run has taken so far.
        """
        self._model = model
        # a run that is taken up again may have kernels by now
        bare = replace(state, pieces=())
        self._question = replace(question_about(model, bare, _PLACE), draws=1)
        self._limit_s = min(_LIMIT_S, max(1.0, state.left_s(spent_s) * _SHARE))
        known = read_proof(state.beginning)
        self._is_known = known is not None
        is_timed = known is not None and _WAY in {**known.baselines_ms, **known.missing}
        self._with_way = _WAY in state.settings.compiled_ways and model.present and not is_timed
        self._pool = ThreadPoolExecutor(1)
        self._process: Popen[str] | None = None
        self._is_over = False
        self._proof: Future[tuple[Proof, float]] | None = None
        self._ways: Future[tuple[Proof, float]] | None = None

    def __enter__(self) -> "Beginning":
        if not self._is_known:
            self._model.say("holding the model to itself, and timing it")
            self._proof = self._pool.submit(self._ask, self._question)
        if self._with_way:
            compile_s = max(1.0, self._limit_s - _BESIDE_COMPILING_S)
            ways = replace(self._question, draws=0, baselines=(_WAY,), compile_s=compile_s)
            self._ways = self._pool.submit(self._ask, ways)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, question: Question) -> tuple[Proof, float]:
        started = time.monotonic()
        gpu, limit_s = self._model.present, self._limit_s
        proof = prove(question, gpu=gpu, timeout_s=limit_s, on_begun=self._keep)
        return proof, time.monotonic() - started

    def _keep(self, process: Popen[str]) -> None:
        self._process = process
        if self._is_over:
            process.kill()

    def settle(self, state: ModelState, *, wait: bool = False) -> ModelState:
        """The state with what is known by now.

        Args:
            wait: until the model has been held to itself, if it has not.

        Raises ProblemError: if no kernel could ever be proved in it, with the reason.
        """
        if self._proof is not None and (wait or self._proof.done()):
            proof, seconds = self._proof.result()
            self._proof = None
            is_late = seconds >= self._limit_s
            if not proof.how and not proof.passed and not is_late:
                # it ended without an answer, as where a piece had the memory: once more, alone
                proof, seconds = self._pool.submit(self._ask, self._question).result()
            if not proof.passed:
                remedy = "name a submodule, or extract its pieces and run them by themselves"
                if is_late and not proof.how:
                    remedy = f"give it more time, or the GPU while nobody else has it; or {remedy}"
                raise ProblemError(
                    f"No kernel could be proved in {state.name}: {proof.reason}; {remedy}"
                )
            state = replace(state, beginning=json.dumps(asdict(proof)), proof_s=seconds)
        before = read_proof(state.beginning)
        if self._ways is not None and self._ways.done() and before is not None:
            ways, seconds = self._ways.result()
            self._ways = None
            state = replace(state, compile_s=seconds)
            if not ways.passed:  # a report without it would say that it was beaten
                ways = Proof(True, "", missing={_WAY: ways.reason})
            state = replace(state, beginning=json.dumps(asdict(with_baselines(before, ways))))
        return state

    def wait(self, state: ModelState) -> ModelState:
        """The state with all that was asked."""
        state = self.settle(state, wait=True)
        if self._ways is not None:
            self._ways.result()
        return self.settle(state)

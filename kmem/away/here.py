"""A run on a worker of this machine, which works where whoever asks does, with the same memory."""

import os
from collections.abc import Callable, Mapping

from kmem.away.errand import PROCESS, Asked, Errand
from kmem.away.request import REQUEST, Request
from kmem.engines.executor import Job, JobResult, Worker
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.run.directory import owner_of

#: Which GPU a run sees is said by its worker.
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Here(Errand):
    """A run that needs no copies: it may use keys, and writes the database itself."""

    def __init__(
        self,
        asked: Asked,
        on_line: Callable[[str], None],
        on_end: Callable[[JobResult], None],
        environment: Mapping[str, str],
    ) -> None:
        """Nothing is begun yet; the first arguments are as of `Errand`.

        Args:
            environment: variables beside those of this process.
        """
        super().__init__(asked, on_line, on_end)
        own = {name: value for name, value in os.environ.items() if name != _VISIBLE}
        self._environment = own | dict(environment)

    def job(self, worker: Worker) -> Job:
        asked = self.asked
        words = self.begin(worker, self._begun(worker))
        request = Request(
            tuple(words or asked.words(str(asked.problem), str(asked.out_dir))),
            str(asked.problem),
            str(asked.out_dir),
            None,
            asked.reference,
            asked.ceilings,
            asked.shared,
            os.getcwd(),
        )
        return Job(PROCESS, {REQUEST: request.to_json()}, self._environment, self.inputs())

    def _begun(self, worker: Worker) -> str | None:
        """The run that goes on: on any card, if its answers were paid for."""
        run_id = owner_of(self.asked.out_dir)
        if run_id is None:
            return None
        try:
            with Memory.to_read() as memory:
                if self.asked.paid:
                    return run_id if memory.runs.has(run_id) else None
                return self.resumable(memory, worker)
        except MemoryStoreError:
            return None

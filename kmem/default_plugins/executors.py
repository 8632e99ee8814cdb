"""Where jobs run: this machine, a Ray cluster, or a Slurm cluster."""

from collections.abc import Callable

from kmem import hookimpl
from kmem.engines.local import LocalExecutor
from kmem.engines.ray_crew import RayExecutor
from kmem.engines.slurm_crew import SlurmExecutor
from kmem.interfaces import Executor


@hookimpl
def register_executors(register: Callable[[Executor], None]) -> None:
    """kmem's own executors; what an engine needs is loaded when it is used."""
    register(LocalExecutor())
    register(RayExecutor())
    register(SlurmExecutor())

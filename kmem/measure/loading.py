"""What a worker is given before it runs anything: a file it may import, shared tensors, a module
with the reference's parameters.
"""

import secrets
from pathlib import Path

from kmem.errors import ExecutorError
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.process import WorkerProcess
from kmem.records import Precision


def write_candidate(source: str, directory: Path) -> Path:
    """Put a source where the worker may import it, under a name that no other candidate of this
    worker has. Raises ExecutorError.
    """
    place = directory / "candidates"
    path = place / f"candidate_{secrets.token_hex(6)}.py"
    try:
        place.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
    except OSError as ex:
        raise ExecutorError(
            f"Cannot write {path}: {ex.strerror}; free space there or choose another place with "
            f"--out"
        ) from ex
    return path


def attach_once(worker: WorkerProcess, shared: SharedArguments) -> None:
    """Show a list of shared arguments to a worker, unless it has it already."""
    if shared.name not in worker.attached:
        worker.request("attach", timeout_s=60.0, name=shared.name, values=shared.describe())
        worker.attached.add(shared.name)


def detach(worker: WorkerProcess, shared: SharedArguments) -> None:
    """Have a worker let go of a list of shared arguments, and of the memory that it keeps beyond
    need.
    """
    worker.request("detach", timeout_s=60.0, name=shared.name)
    worker.attached.discard(shared.name)


def load_module(
    worker: WorkerProcess,
    key: str,
    path: Path,
    class_name: str,
    reference: Reference,
    *,
    timeout_s: float,
    compile_mode: str | None = None,
) -> None:
    """Construct `class_name` from a file in a worker, with the reference's parameters, mode and
    precision flags.
    """
    worker.request(
        "load",
        timeout_s=timeout_s,
        key=key,
        path=str(path),
        class_name=class_name,
        init=reference.init,
        state=[
            [name, reference.state.name, index] for index, name in enumerate(reference.state_names)
        ],
        training=reference.training,
        dtype="bfloat16" if reference.contract.precision is Precision.BF16 else None,
        tf32=reference.contract.precision is Precision.TF32,
        compile_mode=compile_mode,
    )

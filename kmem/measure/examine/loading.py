"""Gives a worker the candidate's file and the reference's parameters, and takes them back."""

import secrets
from pathlib import Path

from kmem.codegen.module.constants import source_at
from kmem.errors import ExecutorError
from kmem.measure.examine.examination import Examination
from kmem.measure.oracle.answers.expected import KEPT_BYTES
from kmem.measure.oracle.reference import Reference
from kmem.measure.worker.commands import Unload


def load_candidate(examination: Examination, reference: Reference) -> None:
    """Import the file, construct `ModelNew` and give it the reference's parameters.

    Raises WorkerFailure, WorkerLost, ExecutorError.
    """
    examination.pause()
    examination.reference = reference
    examination.first_kernels = None
    worker = examination.worker
    source = source_at(examination.kernel, reference.name)
    path = _write_candidate(source, worker.directory)
    # as they were drawn, whatever a kernel before this one did with them
    reference.state.write(list(reference.module.initial_state.values()))
    worker.attach(reference.state)
    worker.attach(reference.inputs.shared)
    command = reference.load_command(examination.key, str(path), source, "ModelNew")
    worker.request(command, timeout_s=examination.load_timeout_s)


def _write_candidate(source: str, directory: Path) -> Path:
    """Leave a source where people find it, under a name that no other candidate has.

    The worker is told the text itself.

    Raises ExecutorError.
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


def unload_candidate(examination: Examination) -> None:
    """Have the worker let go of the kernel."""
    examination.worker.request(Unload(examination.key), timeout_s=examination.run_timeout_s)


def release_outputs(examination: Examination) -> None:
    """Take large outputs off the device while the kernel is timed.

    Their device memory is wanted for fresh inputs.
    """
    reference, worker = examination.loaded_reference, examination.worker
    shared = reference.outputs
    if shared is not None and shared.nbytes > KEPT_BYTES and shared.name in worker.attached:
        worker.detach(shared)
        reference.drop_outputs()

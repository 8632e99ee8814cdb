"""Winners of this machine's own runs, which the compiler's backend uses without a package.

What a winner computes is found out once and kept beside the database; its kernel and its evidence
stay in the run's directory.
"""

import functools
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx

import kmem
from kmem.deploy.entries import row_of
from kmem.deploy.shipped.table import FORMAT, Entry, read_entry
from kmem.devices import named_target
from kmem.errors import KmemError, MemoryStoreError
from kmem.memory.location import default_db_path
from kmem.memory.runs.entries import RunLine
from kmem.memory.store import Memory
from kmem.records import Precision, RunState
from kmem.run.report.loading import load_run

logger = logging.getLogger(__name__)


def remembered_entries(graph: fx.GraphModule) -> tuple[Entry, ...]:
    """Winners that a graph of Dynamo's might have a use for, the fastest of each computation.

    They passed the judge on a GPU as it is here, were neither refused nor retracted since, and keep
    the precision that this process asks for. Why a winner is left out is logged.
    """
    sizes = set(_sizes_in(graph))
    chosen: dict[tuple[Any, ...], tuple[float, Entry]] = {}
    for latency_ms, entry in _winners(_state_of_memory(), _tf32_is_allowed()):
        wanted = [*entry.inputs, *entry.outputs, *entry.state]
        if any(_size(each) not in sizes for each in wanted if each.shape is not None):
            continue
        key = (entry.graph, entry.inputs, entry.device)
        if key not in chosen or latency_ms < chosen[key][0]:
            chosen[key] = (latency_ms, entry)
    return tuple(entry for _, entry in chosen.values())


def _sizes_in(graph: fx.GraphModule) -> Iterator[tuple[int, torch.dtype]]:
    """How many elements of which type the values of a graph have, where that is fixed."""
    for node in graph.graph.nodes:
        found = node.meta.get("example_value")
        for value in found if isinstance(found, list | tuple) else (found,):
            if isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape):
                yield value.numel(), value.dtype


def _size(each: Any) -> tuple[int, torch.dtype]:
    return torch.Size(each.shape).numel(), each.dtype


class _Allowed(NamedTuple):
    """Where this process lets torch compute fp32 in TF32."""

    products: bool
    convolutions: bool


def _tf32_is_allowed() -> _Allowed:
    # the newer flags, which answer whichever were set: the older ones refuse to after these
    backends = torch.backends
    allowed = backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision
    return _Allowed(*(each == "tf32" for each in allowed))


def _state_of_memory() -> tuple[Any, ...]:
    """What changes whenever somebody writes to the database."""
    place = default_db_path()
    files = (place, place.with_name(f"{place.name}-wal"))
    return place, *((f.stat().st_mtime_ns, f.stat().st_size) for f in files if f.exists())


@functools.lru_cache(maxsize=1)
def _winners(state: tuple[Any, ...], tf32: _Allowed) -> tuple[tuple[float, Entry], ...]:
    """Every winner that may be used here, with its milliseconds; read once for all graphs."""
    devices = _devices()
    if not devices:
        return ()
    found = []
    try:
        with Memory.to_read() as memory:
            lines = [
                line
                for line in memory.run_entries.lines()
                if line.state is RunState.FINISHED and line.latency_ms is not None
            ]
            rows = [_read_row(line) for line in lines]
            withdrawn = memory.winners.withdrawn([row["judged"] for row in rows])
    except MemoryStoreError as ex:
        logger.info("memory cannot be read: %s", ex)
        return ()
    for line, row in zip(lines, rows, strict=True):
        reason = row["reason"] or _objection(line, row, devices, tf32)
        # of a card that is not in the table nothing can be shipped: its arch is not asked for
        if not reason and (row["judged"], named_target(line.target).arch) in withdrawn:
            reason = "its kernel was refused, or what it passed retracted"
        if reason:
            logger.info("%s (run %s) is not used: %s", line.problem, line.id, reason)
        else:
            found.append((line.latency_ms, read_entry(row["entry"], Path(line.out_dir))))
    return tuple(found)


def _devices() -> Sequence[str]:
    """Full names of the GPUs here; in the interpreter every GPU that there is a name for."""
    import triton

    if triton.knobs.runtime.interpret:
        return ("any",)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def _objection(
    line: RunLine, row: Mapping[str, Any], devices: Sequence[str], tf32: _Allowed
) -> str:
    """Why a run's winner is of no use in this process; empty if it is of use."""
    if line.precision == Precision.TF32.value and not tf32.products:
        return "it computes in TF32, which torch.set_float32_matmul_precision has to allow"
    if not tf32.convolutions and _may_convolve_fp32(row["entry"]):
        return "it was judged beside convolutions in TF32, which torch.backends.cudnn forbids here"
    if "any" in devices:
        return ""
    name = named_target(line.target).full_name
    if name not in devices:
        return f"it is for an {name}"
    return "it never ran on a GPU" if row["entry"]["timing"]["estimated"] else ""


def _may_convolve_fp32(entry: Mapping[str, Any]) -> bool:
    """Whether a module convolves fp32, as far as its calls tell."""
    is_single = any(each.get("dtype") == "float32" for each in entry["inputs"])
    return is_single and (not entry["calls"] or "convolution" in str(entry["calls"]))


def _read_row(line: RunLine) -> dict[str, Any]:
    """What is kept of a run's winner: its row of a table, or why there is none."""
    place = default_db_path().parent / "remembered" / f"{line.id}.json"
    mark = f"{FORMAT} {kmem.__version__} {torch.__version__} {line.out_dir}"
    with suppress(OSError, ValueError, KeyError, TypeError):
        row = json.loads(place.read_text(encoding="utf-8"))
        if row["mark"] == mark:
            return row
    try:
        result = load_run(Path(line.out_dir))
        judged = result.outcome.best.candidate.kernel.hash
        row = {"mark": mark, "judged": judged, "entry": row_of(result), "reason": ""}
    except KmemError as ex:
        row = {"mark": mark, "judged": "", "entry": None, "reason": str(ex)}
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump(row, file)
        os.replace(file.name, place)
    return row

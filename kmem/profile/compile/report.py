"""What compiling one module found: a compile process's answer as launches with their figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kmem.host.kernel_identity import LaunchedKernel
from kmem.profile.compile.occupancy import compute_occupancy
from kmem.records import Device, Launch


class CompileStatus(Enum):
    """Whether every kernel of a module compiled.

    NEEDS_VALUES: the forward looks at its data, so that only a GPU can tell. LATE: the time for all
    was up first, which says nothing about the module.
    """

    OK = "ok"
    FAILED = "failed"
    NEEDS_VALUES = "needs_values"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling one module found.

    `launches` are those of a call that is not the first, in order of execution, vendor operators
    included (metrics `static__library`). `first_kernels` are the Triton kernels of the first call,
    in order, which may also make something of the weights that later calls read.
    What is read out of the binaries (registers, instructions, occupancy) is among their metrics
    only if the pool was asked for it. `ptx_hash` is over the PTX, grids and scalars of all launches
    and over the vendor operators, so that modules with equal hashes do the same; None unless status
    is OK. `vendor_ops` are the aten operators that would launch a vendor's kernel.
    """

    kernel: str  # hash
    status: CompileStatus
    log: str
    launches: tuple[Launch, ...]
    ptx_hash: str | None
    seconds: float
    vendor_ops: tuple[str, ...]
    first_kernels: tuple[str, ...] = ()
    # kinds of tt.dot in each of these: ("f32 ieee",)
    products: tuple[tuple[str, ...], ...] = ()
    described: tuple[LaunchedKernel, ...] = ()  # the launches of these
    described_again: tuple[LaunchedKernel, ...] = ()  # `launches` without vendor operators


def last_line(report: CompileReport) -> str:
    """What a compiler's log ends with, which names the cause."""
    return (report.log.strip().splitlines() or ["no message"])[-1]


def read_report(kernel: str, answer: dict[str, Any], device: Device) -> CompileReport:
    """A compile process's answer about a kernel (hash), with the occupancy of its launches."""
    launches = tuple(_read_launch(entry, device) for entry in answer.get("launches", ()))
    return CompileReport(
        kernel=kernel,
        status=CompileStatus(answer["status"]),
        log=answer["log"],
        launches=launches,
        ptx_hash=answer.get("ptx_hash"),
        seconds=answer["seconds"],
        vendor_ops=tuple(launch.name for launch in launches if "static__library" in launch.metrics),
        first_kernels=tuple(entry["name"] for entry in answer.get("first", ())),
        products=tuple(tuple(entry["products"]) for entry in answer.get("first", ())),
        described=_describe(answer.get("first", ())),
        described_again=_describe(answer.get("launches", ())),
    )


def _describe(entries: Sequence[dict[str, Any]]) -> tuple[LaunchedKernel, ...]:
    return tuple(
        LaunchedKernel(entry["identity"], entry["arguments"], frozenset(entry["constants"]))
        for entry in entries
        if "identity" in entry
    )


def _read_launch(entry: dict[str, Any], device: Device) -> Launch:
    grid = tuple(entry["grid"]) if entry["grid"] else None
    block = tuple(entry["block"]) if entry["block"] else None
    launch = Launch(entry["name"], None, grid, block, entry["metrics"])
    # a vendor's kernel, or one whose binary was not read
    if "static__registers_per_thread" not in launch.metrics:
        return launch
    occupancy = compute_occupancy(
        device,
        warps_per_block=block[0] // device.warp_size,
        registers_per_thread=int(launch.metrics["static__registers_per_thread"]),
        shared_bytes_per_block=int(launch.metrics["static__shared_bytes_per_block"]),
    )
    figures = {
        "static__occupancy_pct": 100.0 * occupancy.ratio,
        "static__blocks_per_sm": float(occupancy.blocks_per_sm),
    }
    if occupancy.blocks_per_sm:
        slots = occupancy.blocks_per_sm * device.sm_count
        figures["static__waves"] = grid[0] * grid[1] * grid[2] / slots
    return replace(launch, metrics={**launch.metrics, **figures})

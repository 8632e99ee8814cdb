"""Times of the package on this machine: `python benchmark.py`, one JSON line for each entry."""

import json
import statistics
from collections.abc import Callable

import torch

from kmem.deploy.beside.reference import ENTRIES, can_run, details, make_reference
from kmem.deploy.shipped.patch import apply
from kmem.deploy.shipped.table import Entry

_REPEATS = 50
#: Written between calls, so that no call finds its inputs in the cache: larger than any L2.
_FLUSH_BYTES = 256 << 20


def latency_ms(call: Callable[[], object], flush: torch.Tensor) -> float:
    """Median time of one call on the device, in milliseconds, with a cold cache."""
    for _ in range(5):
        call()
    times = []
    for _ in range(_REPEATS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def time_entry(entry: Entry, flush: torch.Tensor) -> dict[str, object]:
    """Times of the module's own code, of torch.compile and of the kernel, and what was recorded."""
    if not can_run(entry):
        return {"entry": entry.name, "skipped": f"needs an {entry.device}"}
    model, inputs = make_reference(entry)
    with torch.no_grad():
        eager_ms = latency_ms(lambda: model(*inputs), flush)
        compiled = torch.compile(model)
        compile_ms = latency_ms(lambda: compiled(*inputs), flush)
        with apply(model, [entry]) as handle:
            kernel_ms = latency_ms(lambda: model(*inputs), flush)
            status = str(handle)
    return {
        "entry": entry.name,
        "kernel_ms": kernel_ms,
        "eager_ms": eager_ms,
        "compile_ms": compile_ms,
        "status": status,
        "recorded": details(entry)["timing"],
    }


def main() -> None:
    """Print a line for each entry."""
    if not torch.cuda.is_available():
        raise SystemExit("No GPU here: there is nothing to time")
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for entry in ENTRIES:
        print(json.dumps(time_entry(entry, flush)))


if __name__ == "__main__":
    main()

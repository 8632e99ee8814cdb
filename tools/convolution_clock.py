"""Time and error of one convolution module after the other, for tools/convolution_table.py.

Everything runs in the process that imports this: on a GPU a process of its own, which ends if a
kernel breaks its context. Times are the judge's: CUDA events by the clock of its workers
(kmem/measure/worker/clocks.py), the L2 cache flushed, the median. Errors are relative Frobenius
norms against float64 of the first and the last image, the larger one. No verdict is given: no other
families of inputs are tried, and nothing confines a kernel.
"""

import copy
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem
from kmem.testing import import_source

# The judge copies this directory into its workers, whose modules name each other without a package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "kmem" / "measure" / "worker"))
from clocks import EventClock  # noqa: E402

#: The module itself as it stands, and with the library's algorithms measured and channels last, its
#: fp32 exact, as TF32, and the whole module in half precision.
EAGER = "eager"
LIBRARY = {
    "float32": (EAGER, "cudnn fp32", "cudnn tf32", "cudnn fp16"),
    "bfloat16": (EAGER, "cudnn bf16"),
    "float16": (EAGER, "cudnn fp16"),
}
_HALVES = {"cudnn fp16": torch.float16, "cudnn bf16": torch.bfloat16}
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: Calls of a timing: as many as take this long, and at least and at most so many.
_BUDGET_MS, _FEWEST, _MOST = 80.0, 7, 40
_WARM = 3

#: (calls, how many) -> ms of each.
Clock = Callable[[Callable[[], object], int], list[float]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A problem's module with its inputs on a device, and what two images give in float64."""

    model: torch.nn.Module
    inputs: list[Any]
    exact: Mapping[int, torch.Tensor]

    def error(self, result: torch.Tensor) -> float:
        """The larger relative error of the two images."""
        found = 0.0
        for image, expected in self.exact.items():
            difference = result[image : image + 1].double() - expected
            found = max(found, float(difference.norm() / expected.norm()))
        return found


def make_subject(problem: Path, device: str) -> Subject:
    """The module of a problem file, its weights drawn with seed 0."""
    torch.manual_seed(0)
    module = execute_problem(load_problem(problem))
    model, inputs = build_model(module, device), build_inputs(module, device)
    exact_model = copy.deepcopy(model).double()
    images = {0, inputs[0].shape[0] - 1}
    with torch.no_grad():
        exact = {image: exact_model(inputs[0][image : image + 1].double()) for image in images}
    return Subject(model, inputs, exact)


def measure_module(
    subject: Subject, model: torch.nn.Module, inputs: list[Any], clock: Clock
) -> dict[str, float]:
    """Median, fastest and slowest ms of a call, and its error."""
    with torch.no_grad():
        for _ in range(_WARM):
            result = model(*inputs)
        error = subject.error(result)
        del result
        first = clock(lambda: model(*inputs), _WARM)
        count = max(_FEWEST, min(_MOST, int(_BUDGET_MS / statistics.median(first))))
        times = clock(lambda: model(*inputs), count)
    return {
        "ms": statistics.median(times),
        "low_ms": min(times),
        "high_ms": max(times),
        "calls": float(count),
        "error": error,
    }


def measure_library(subject: Subject, mode: str, clock: Clock) -> dict[str, float]:
    """The module itself; see `LIBRARY`."""
    if mode == EAGER:
        return measure_module(subject, subject.model, subject.inputs, clock)
    wanted = {"dtype": _HALVES[mode]} if mode in _HALVES else {}
    if subject.inputs[0].dim() in _LAYOUTS:
        wanted["memory_format"] = _LAYOUTS[subject.inputs[0].dim()]
    model = copy.deepcopy(subject.model).to(**wanted)
    inputs = [value.to(**wanted) for value in subject.inputs]
    with _measured_algorithms(allow_tf32=mode == "cudnn tf32"):
        return measure_module(subject, model, inputs, clock)


@contextmanager
def _measured_algorithms(*, allow_tf32: bool) -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=allow_tf32):
        yield


def measure_kernel(subject: Subject, source: str, clock: Clock) -> dict[str, float]:
    """A module that recipes wrote, with the weights of the subject's own."""
    model = import_source(source).ModelNew()
    model.load_state_dict(subject.model.state_dict())
    where = subject.inputs[0]
    model = model.to(where.device).train(subject.model.training)
    return measure_module(subject, model, subject.inputs, clock)


# ---- in the process of a GPU


@lru_cache(maxsize=1)
def _subject(problem: str) -> Subject:
    torch.cuda.empty_cache()
    return make_subject(Path(problem), "cuda")


@lru_cache(maxsize=1)
def _clock(l2_bytes: int) -> Clock:
    made = EventClock(l2_bytes)
    return lambda call, count: made.time_calls([call], count)["event_ms"]


def measure_on_gpu(
    problem: str, family: str, source: str | None, l2_bytes: int
) -> dict[str, float | str]:
    """One row's figures, or `failure` with what went wrong.

    Args:
        source: of the module; None for the library in the mode that `family` names.
    """
    try:
        subject, clock = _subject(problem), _clock(l2_bytes)
        if source is None:
            return dict(measure_library(subject, family, clock))
        return dict(measure_kernel(subject, source, clock))
    # out of memory or of resources, what the card refuses, what a compiler cannot: the row's result
    except Exception as ex:  # noqa: BLE001
        return {"failure": f"{type(ex).__name__}: {ex}"[:300]}
    finally:
        torch.cuda.empty_cache()

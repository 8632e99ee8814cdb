"""A second opinion on kernel files that imports nothing of kmem, for tools/compare_kernels.py.

    python tools/rival_clock.py '{"problem": FILE, "kernels": {"theirs": FILE}, "seconds": 120}'

Prints a line of JSON after each part, so that a call that is cut short leaves what it had: the
rivals' own gate, errors against float64, what a kernel keeps between calls, and times. Times are
those of CUDA events around one forward each, with the L2 cache flushed before, ways by turns;
medians. Without CUDA there are no times. With `"turns": true` it prints `{"turn": "shared"}` before
each part that uses the GPU, `{"turn": "alone"}` before it times, and `{"turn": "none"}` before it
compiles (the first call of a kernel too, unless it tunes itself by timing), and waits for a line on
its standard input: the GPU should be its own to that extent by then. Waiting does not count in
`"seconds"`. `"baselines"` names what is timed beside eager: compile, max_autotune (both, if left
out).

KernelBench's convention makes weights equal: the same seed before both constructors, and no more.
A kernel runs under the switches of the whole process (TF32, cuDNN's) that its own file sets;
whatever is beside it runs under those that the problem's file leaves, PyTorch's defaults mostly.
"""

import copy
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

#: AdaExplore's own gate, absolute and relative. Source: its released metrics files,
#: `_correctness_gate`.
THEIR_TOLERANCE = 5e-2
#: Draws of inputs that its gate takes. Source: the same, `correctness_trials`.
THEIR_TRIALS = 5
#: What a float32 result may err in any case, and how much more than eager.
_FLOOR, _SLACK = {torch.float32: 1e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}, 2.0
#: Each way is timed so many times in a round, and rounds alternate between the ways.
_IN_A_ROUND, _ROUNDS, _WARMUP = 10, 9, 5
#: Twice the largest L2 cache there is (H200: 50 MiB, GB200: 126 MiB). Source: NVIDIA datasheets.
_FLUSHED_BYTES = 256 << 20
_WEIGHTS, _INPUTS = 7, 3
#: Switches of the whole process that a released file may set, and where they are.
_SWITCHES = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
)
#: What is timed beside eager and the kernels: torch.compile, by mode.
BASELINE_MODES = {"compile": None, "max_autotune": "max-autotune-no-cudagraphs"}


def load(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tensors_of(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    values = found.values() if isinstance(found, Mapping) else found
    return [each for each in values if isinstance(each, torch.Tensor)]


def _read_switches() -> tuple[bool, ...]:
    return tuple(getattr(place, name) for place, name in _SWITCHES)


def _set_switches(values: Sequence[bool]) -> None:
    for (place, name), value in zip(_SWITCHES, values, strict=True):
        setattr(place, name, value)


class Contest:
    """A problem's module and the kernels that stand for it, with the same weights."""

    def __init__(self, problem: str, kernels: Mapping[str, str], device: str) -> None:
        self.device = device
        self.problem = load(problem, "rival_problem")
        self.init = getattr(self.problem, "get_init_inputs", list)()
        self.eager = self._construct(self.problem.Model)
        self.kernels: dict[str, torch.nn.Module] = {}
        self._paths = kernels
        self._factories: dict[str, Callable[..., torch.nn.Module]] = {}
        self._switches: dict[str, tuple[bool, ...]] = {}
        self.failures: dict[str, str] = {}
        for name, path in kernels.items():
            try:
                with self.switches_of(name):
                    self._factories[name] = load(path, f"rival_{name}").ModelNew
                    self.kernels[name] = self._construct(self._factories[name])
            except Exception as ex:  # noqa: BLE001 - a stranger's file; the row says what
                self.failures[name] = f"{type(ex).__name__}: {str(ex)[:300]}"

    def _construct(self, factory: Callable[..., torch.nn.Module]) -> torch.nn.Module:
        torch.manual_seed(_WEIGHTS)
        with torch.device(self.device):
            return factory(*self.init).to(self.device)

    @contextmanager
    def switches_of(self, name: str) -> Iterator[None]:
        """With the process's switches as a kernel's file left them last; no kernel: as they are."""
        outside = _read_switches()
        _set_switches(self._switches.get(name, outside))
        try:
            yield
        finally:
            if name in self._paths:
                self._switches[name] = _read_switches()
            _set_switches(outside)

    def made_anew(self, name: str) -> torch.nn.Module:
        """A kernel that has not been called, with the same weights."""
        with self.switches_of(name):
            return self._construct(self._factories[name])

    def tunes_itself(self, name: str) -> bool:
        """Whether a kernel's first call times settings of it, by its text."""
        return "autotune" in Path(self._paths[name]).read_text(encoding="utf-8")

    def compile(self, name: str) -> None:
        """Have a kernel's first call behind it; what it raises is raised by later ones again."""
        with suppress(Exception):
            self.answer(name, self.inputs(_INPUTS))

    def inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        with torch.device(self.device):
            drawn = self.problem.get_inputs()
        return [each.to(self.device) if isinstance(each, torch.Tensor) else each for each in drawn]

    def answer(
        self, name: str, values: Sequence[Any], module: torch.nn.Module | None = None
    ) -> list[torch.Tensor]:
        """Results of one forward from the module's state as it is, which stays; copies.

        Args:
            name: of a kernel, or "eager".
            module: in place of the kernel that is timed.
        """
        module = self.kernels.get(name, self.eager) if module is None else module
        before = {name: value.clone() for name, value in module.state_dict().items()}
        torch.manual_seed(_INPUTS)  # of a dropout
        with self.switches_of(name):
            found = [each.clone() for each in tensors_of(module(*values))]
        for key, value in module.state_dict().items():
            if key in before and not torch.equal(value, before[key]):
                value.copy_(before[key])
        return found


def is_close(found: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Within the rivals' tolerance, in shape and number too."""
    return len(found) == len(right) and all(
        one.shape == two.shape
        and torch.allclose(one.float(), two.float(), THEIR_TOLERANCE, THEIR_TOLERANCE)
        for one, two in zip(found, right, strict=True)
    )


def their_gate(contest: Contest, name: str) -> dict[str, Any]:
    """How many draws of inputs a kernel passes at the rivals' tolerance, and its largest error."""
    passed, largest = 0, 0.0
    for trial in range(THEIR_TRIALS):
        values = contest.inputs(_INPUTS + trial)
        right = contest.answer("eager", values)
        found = contest.answer(name, values)
        passed += is_close(found, right)
        for one, two in zip(found, right, strict=False):
            if one.shape == two.shape and one.numel():
                largest = max(largest, float((one.double() - two.double()).abs().max()))
    return {"passed": passed, "of": THEIR_TRIALS, "largest_difference": largest}


def accuracy(contest: Contest, name: str) -> dict[str, Any]:
    """Error against float64 over what twice eager's or a floor allows; above 1 is too much.

    On the problem's own values, and on signed and scaled ones, unless eager overflows there; no
    excess where it always does.
    """
    worst: dict[str, Any] = {"excess": None, "why": "eager overflows"}
    for family in ("own", "signed"):
        values = contest.inputs(_INPUTS)
        if family == "signed":
            values = [_signed(each) for each in values]
        right = _in_double(contest, values)
        eager = contest.answer("eager", values)
        found = contest.answer(name, values)
        if [each.shape for each in found] != [each.shape for each in eager]:
            return {"excess": None, "family": family, "why": "other shapes"}
        for mine, own, exact in zip(found, eager, right, strict=True):
            error, eagers = (_relative_error(each, exact) for each in (mine, own))
            if not math.isfinite(eagers):  # it overflows, as a kernel may too
                continue
            excess = error / max(_SLACK * eagers, _FLOOR.get(own.dtype, 1e-6))
            if worst["excess"] is None or not excess <= worst["excess"]:
                worst = {"excess": excess, "family": family, "error": error, "eager": eagers}
    return worst


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _signed(value: Any) -> Any:
    return (value - 0.37) * 1.7 if _is_floating(value) else value


def _in_double(contest: Contest, values: Sequence[Any]) -> list[torch.Tensor]:
    wide = copy.deepcopy(contest.eager).double()
    given = [each.double() if _is_floating(each) else each for each in values]
    return [each.clone() for each in tensors_of(wide(*given))]


def _relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    one, two = found.double(), exact.double()
    return float((one - two).norm() / two.norm().clamp_min(1e-30))


def what_it_keeps(contest: Contest, name: str) -> list[str]:
    """What of an earlier call answers a later one: of inputs, of parameters, of results.

    Values are written where the kernel found them before, so that no address changes. Of a kernel
    that is wrong by itself, nothing can be said.
    """
    # what it keeps by address may be of other values that lay there
    kernel, kept = contest.made_anew(name), []
    values = contest.inputs(_INPUTS)
    if not is_close(contest.answer(name, values, kernel), contest.answer("eager", values)):
        return []
    with contest.switches_of(name):
        first = tensors_of(kernel(*values))
    before = [each.clone() for each in first]
    for each in values:
        if _is_floating(each):
            each.mul_(-0.5)
    found = contest.answer(name, values, kernel)
    right = contest.answer("eager", values)
    if not is_close(found, right) and is_close(found, before):
        kept.append("results of earlier inputs")
    if not all(torch.equal(one, two) for one, two in zip(first, before, strict=True)):
        kept.append("memory of its results")
    was_right = is_close(found, right)
    written = [*contest.eager.parameters(), *kernel.parameters()]
    for each in written:
        each.mul_(1.5)
    again = contest.answer(name, values, kernel)
    if was_right and not is_close(again, contest.answer("eager", values)):
        moved = not all(torch.equal(one, two) for one, two in zip(again, found, strict=True))
        kept.append("some parameters" if moved else "parameters")
    for each in written:
        each.div_(1.5)
    return kept


def groups_of(
    contest: Contest, names: Sequence[str], baselines: Sequence[str]
) -> Iterator[dict[str, Callable[..., Any]]]:
    """What is timed, in the order in which it is made ready; compiled ones as they are called."""
    yield {"eager": contest.eager, **{name: contest.kernels[name] for name in names}}
    for name in baselines:
        yield {name: torch.compile(contest.eager, mode=BASELINE_MODES[name])}


class Turns:
    """Asks for the GPU where that was asked for; `ends` moves on by what was waited."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.ends = time.monotonic() + float(asked["seconds"])
        self._are_asked = bool(asked.get("turns"))

    def ask(self, wanted: str) -> Iterator[dict[str, Any]]:
        """The row that asks for it; whoever reads rows answers before taking the next."""
        if self._are_asked:
            began = time.monotonic()
            yield {"turn": wanted}
            self.ends += time.monotonic() - began


def time_ways(
    contest: Contest, names: Sequence[str], asked: Mapping[str, Any], turns: Turns
) -> Iterator[dict[str, Any]]:
    """Medians in milliseconds by way; anew with each way that came up in time."""
    values = contest.inputs(_INPUTS)
    flushed = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device=contest.device)
    ready: dict[str, Callable[..., Any]] = {}
    for group in groups_of(contest, names, asked.get("baselines", tuple(BASELINE_MODES))):
        if time.monotonic() > turns.ends:
            return
        yield from turns.ask("shared" if "eager" in group else "none")  # or it is compiled
        for name, way in group.items():
            try:
                with contest.switches_of(name):
                    for _ in range(_WARMUP):
                        way(*values)
                torch.cuda.synchronize()
                ready[name] = way
            except Exception as ex:  # noqa: BLE001  # what a stranger's kernel or a compiler raises
                yield {"failures": {name: f"{type(ex).__name__}: {str(ex)[:300]}"}}
        yield from turns.ask("alone")
        samples: dict[str, list[float]] = {each: [] for each in ready}
        for _ in range(_ROUNDS):
            for each, called in ready.items():
                with contest.switches_of(each):
                    samples[each] += _sample(called, values, flushed)
        yield {"times_ms": {each: statistics.median(taken) for each, taken in samples.items()}}


def _sample(way: Callable[..., Any], values: Sequence[Any], flushed: torch.Tensor) -> list[float]:
    pairs = []
    for _ in range(_IN_A_ROUND):
        flushed.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        way(*values)
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def look_at(asked: Mapping[str, Any], device: str) -> Iterator[dict[str, Any]]:
    """Rows to be merged, one after each part."""
    turns = Turns(asked)
    with torch.no_grad():
        yield from turns.ask("shared")
        contest = Contest(asked["problem"], asked["kernels"], device)
        yield {"failures": contest.failures}
        for name in list(contest.kernels):
            if device == "cuda":
                yield from turns.ask("shared" if contest.tunes_itself(name) else "none")
                contest.compile(name)
            for part in (their_gate, accuracy, what_it_keeps):
                yield from turns.ask("shared")
                try:
                    yield {part.__name__: {name: part(contest, name)}}
                except Exception as ex:  # noqa: BLE001  # a stranger's kernel may raise anything
                    yield {"failures": {name: f"{part.__name__}: {type(ex).__name__}: {ex}"[:400]}}
        if device == "cuda":
            yield from time_ways(contest, list(contest.kernels), asked, turns)


def main(asked: Mapping[str, Any], device: str) -> None:
    """Print the rows as they come."""
    for row in look_at(asked, device):
        print(json.dumps(row), flush=True)
        if "turn" in row and not sys.stdin.readline():
            return  # whoever answers is gone, and with it the right to the GPU


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), "cuda" if torch.cuda.is_available() else "cpu")

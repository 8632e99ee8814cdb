"""Train a model with and without kmem's kernels, and say whether the loss curves are the same.

    python tools/compare_training.py problems/models/vit.py --out runs/trained --minutes 20
    python tools/compare_training.py problems/models/vit.py --run runs/DIR --out runs/trained

The first command makes the kernels, for training; the second takes those of a run. The model learns
what another of its kind, with weights of its own, returns. On a GPU kernels run as they will, else
in Triton's interpreter.

What noise is, eager says: it is trained again and again from weights, and on inputs, that are moved
by as much as one rounding. A curve's distance is the root mean square, over the steps, of how far
its logarithm is from the mean of those curves. The curves are the same if the distance with kernels
is not among the largest 5% (of 20 trainings at least), or if no step differs from eager's by 0.1%.

DIR gets trainings.jsonl, with a line for each training as it ends: a call goes on where an earlier
one was cut off, and after Ctrl-C the verdict is that of the trainings there are. From them come
curves.csv, with a line for each step, curves.png and verdict.json. The exit code is 1 if they
differ, 2 if there is nothing to compare, or DIR has other trainings.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

if not torch.cuda.is_available():  # before Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from judge_winners import read_rows  # noqa: E402

import kmem  # noqa: E402
from kmem.run.setup.session import versions  # noqa: E402
from kmem.whole.graphs.capture import build_real  # noqa: E402
from kmem.whole.graphs.source import Built, ModelSource, read_source  # noqa: E402

#: Batches that are learnt, in turns.
_BATCHES = 4
#: Of noise, the share of distances that count as too large; and what nobody would see.
_LEVEL, _UNSEEN = 0.05, 1e-3
_LEAST_TRAININGS = 20
#: Eager's, that with kernels, and two with noise: a distance is one from others.
_LEAST_OF_ALL = 4
_EAGER, _KMEM = "eager", "kmem"
#: The exit code where nothing can be compared.
_NOTHING = 2
#: One rounding of the types that models compute in; of fp32 as cuDNN's TF32.
_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
_TF32_ROUNDING = 2.0**-11
_TF32_MODULES = (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)

Curve = list[float]


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt: batches of inputs, and what is to be returned for each."""

    source: ModelSource
    device: str
    batches: tuple[Built, ...]
    wanted: tuple[tuple[torch.Tensor, ...], ...]
    rate: float
    steps: int


@dataclass(frozen=True, slots=True)
class Trained:
    """A training: its losses, seconds of a step (the median), and calls that kernels served."""

    losses: Curve
    step_s: float
    served: int = 0
    passed_on: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether curves are the same, and by what."""

    same: bool
    reason: str
    distance: float  # with kernels
    noise: float  # the largest of eager's
    p: float
    largest: float  # of the relative differences between both curves


def judge(kernels: Curve, eager: Curve, noise: Sequence[Curve]) -> Verdict:
    """Hold the curve with kernels to eager's, and to how far eager's own lie apart."""
    every = [_logs(each) for each in (eager, *noise)]
    distances = [
        _distance(curve, [other for other in every if other is not curve]) for curve in every
    ]
    found = _distance(_logs(kernels), every)
    p = (1 + sum(each >= found for each in distances)) / (1 + len(distances))
    largest = max(abs(a - b) / abs(b) for a, b in zip(kernels, eager, strict=True))
    if not all(map(math.isfinite, kernels)):
        return Verdict(False, "a loss is not finite", found, max(distances), p, largest)
    if p > _LEVEL and len(every) >= _LEAST_TRAININGS:
        return Verdict(True, "it is within eager's noise", found, max(distances), p, largest)
    if largest < _UNSEEN:
        reason = f"no step differs by {_UNSEEN:.1%}"
        return Verdict(True, reason, found, max(distances), p, largest)
    if len(every) < _LEAST_TRAININGS:
        reason = f"{len(every)} trainings of eager say too little of its noise"
        return Verdict(False, reason, found, max(distances), p, largest)
    return Verdict(False, "it is beyond eager's noise", found, max(distances), p, largest)


def _logs(curve: Curve) -> Curve:
    return [math.log(max(each, 1e-300)) if math.isfinite(each) else math.inf for each in curve]


def _distance(curve: Curve, others: Sequence[Curve]) -> float:
    means = map(statistics.fmean, zip(*others, strict=True))
    squares = [(one - mean) ** 2 for one, mean in zip(curve, means, strict=True)]
    return math.sqrt(statistics.fmean(squares))


# --- training


def make_task(source: ModelSource, device: str, steps: int, rate: float) -> Task:
    """Batches as the source draws them, and what a model with other weights returns for them."""
    torch.manual_seed(1)
    teacher = build_real(source, device=device)
    batches, wanted = [], []
    for number in range(_BATCHES):
        torch.manual_seed(100 + number)
        batch = Built(teacher.module, *_drawn_again(teacher)) if number else teacher
        batches.append(batch)
        with torch.no_grad():
            wanted.append(tuple(_outputs(batch)))
    return Task(source, device, tuple(batches), tuple(wanted), rate, steps)


def train(task: Task, run: Path | None = None, noise: int = 0) -> Trained:
    """Losses of a training from the same weights.

    Args:
        run: whose kernels are used; eager's without.
        noise: the seed of roundings of weights and inputs; none with 0.
    """
    torch.manual_seed(0)
    model = build_real(task.source, device=task.device).module
    generator = torch.Generator(task.device).manual_seed(noise)
    unit = _unit(model)
    if noise:
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(_moved(each, generator, unit))
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate)
    handle = kmem.apply(model, kmem.load(run)) if run is not None else None
    losses, seconds = [], []
    for step in range(task.steps):
        batch, wanted = (each[step % _BATCHES] for each in (task.batches, task.wanted))
        args, kwargs = batch.args, dict(batch.kwargs)
        if noise:
            args, kwargs = pytree.tree_map(
                lambda leaf: _moved(leaf, generator, unit), (args, kwargs)
            )
        torch.manual_seed(step)  # of dropout
        started = time.perf_counter()
        loss = _loss(_outputs(Built(model, args, kwargs)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the device
        seconds.append(time.perf_counter() - started)
    if handle is None:
        return Trained(losses, statistics.median(seconds))
    standings = handle.status()
    served = sum(each.served for each in standings)
    passed_on = "; ".join(each.reason for each in standings if each.passed_on)
    handle.undo()
    return Trained(losses, statistics.median(seconds), served, passed_on)


def _outputs(built: Built) -> list[torch.Tensor]:
    found = pytree.tree_leaves(built.module(*built.args, **built.kwargs))
    return [each for each in found if isinstance(each, torch.Tensor) and each.is_floating_point()]


def _loss(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum(
        torch.nn.functional.mse_loss(one.float(), other.float())
        for one, other in zip(found, wanted, strict=True)
    )


def _unit(model: torch.nn.Module) -> float:
    """One rounding of what a model computes in."""
    dtypes = {each.dtype for each in model.parameters()}
    unit = max((_ROUNDING.get(each, 2.0**-53) for each in dtypes), default=2.0**-24)
    rounds = torch.cuda.is_available() and any(
        isinstance(each, _TF32_MODULES) for each in model.modules()
    )
    return max(unit, _TF32_ROUNDING) if rounds else unit


def _moved(value: Any, generator: torch.Generator, unit: float) -> Any:
    """A floating tensor with each element moved by one rounding at most."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    coins = torch.rand(value.shape, generator=generator, device=value.device) * 2 - 1
    return (value.float() * (1 + coins * unit)).to(value.dtype)


def _drawn_again(built: Built) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the same shapes, strides and spread."""

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype is torch.bool or not leaf.numel():
            return leaf
        if not leaf.is_floating_point():
            return leaf.flatten()[torch.randperm(leaf.numel(), device=leaf.device)].view_as(leaf)
        values = leaf.float()
        new = torch.randn(leaf.shape, device=leaf.device) * values.std(unbiased=False)
        new += values.mean()
        return (new.abs() if bool((values >= 0).all()) else new).to(leaf.dtype)

    args, kwargs = pytree.tree_map(draw, (built.args, dict(built.kwargs)))
    return args, kwargs


# --- the command


def main() -> int:
    asked = _read_arguments()
    os.environ.setdefault("KMEM_STRICT", "1")  # a kernel must not hide behind what it replaces
    asked.out.mkdir(parents=True, exist_ok=True)
    place = asked.out / "trainings.jsonl"
    with suppress(KeyboardInterrupt):
        if not asked.verdict_only:
            _train_all(asked, place)
    rows = read_rows(place)
    if not {_EAGER, _KMEM} <= rows.keys() or len(rows) < _LEAST_OF_ALL:
        sys.stderr.write(f"{place} has no trainings to compare yet: call it once more\n")
        return _NOTHING
    data = _write_verdict(asked, rows)
    return 0 if data["same"] else 1


def _train_all(asked: argparse.Namespace, place: Path) -> None:
    """Add the trainings that a file does not have, as they end."""
    known = read_rows(place)
    about = _about(asked)
    if any({name: row.get(name) for name in about} != about for row in known.values()):
        sys.stderr.write(f"{place} has other trainings than {about}: take another --out\n")
        sys.exit(_NOTHING)
    wanted = [_EAGER, _KMEM, *map(str, range(1, asked.trainings))]
    if known.keys() >= set(wanted):
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = asked.run or _make_kernels(asked)
    source = read_source(asked.model, asked.input, mode="train")
    task = make_task(source, device, asked.steps, asked.rate)
    with place.open("a", encoding="utf-8") as lines:
        lines.write("\n")  # the last line may have been cut off
        for each in wanted:
            if each in known:
                continue
            noise = int(each) if each.isdecimal() else 0
            made = train(task, run if each == _KMEM else None, noise)
            row = {"key": each, **about, "versions": versions(), **asdict(made)}
            lines.write(json.dumps(row) + "\n")
            lines.flush()


def _about(asked: argparse.Namespace) -> dict[str, Any]:
    """What trainings must have in common to be compared."""
    has_gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if has_gpu else "Triton's interpreter",
        "model": asked.model,
        "input": list(asked.input),
        "run": str(asked.run or ""),
        "steps": asked.steps,
        "rate": asked.rate,
    }


def _write_verdict(asked: argparse.Namespace, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    eager, ours = rows[_EAGER], rows[_KMEM]
    noise = [row["losses"] for name, row in rows.items() if name not in (_EAGER, _KMEM)]
    verdict = judge(ours["losses"], eager["losses"], noise)
    with (asked.out / "curves.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["step", "eager", "kmem", "noise_low", "noise_high"])
        pairs = zip(eager["losses"], ours["losses"], strict=True)
        for step, (one, two) in enumerate(pairs):
            others = [curve[step] for curve in noise]
            lines.writerow([step, one, two, min(others), max(others)])
    _draw(asked.out / "curves.png", eager["losses"], ours["losses"], noise)
    ran = bool(ours["served"]) and not ours["passed_on"]
    passed_on = ours["passed_on"] or "no call"
    data = {
        "model": asked.model,
        "device": ours["device"],
        "versions": ours.get("versions", {}),
        "steps": len(ours["losses"]),
        "trainings": 1 + len(noise),
        "same": verdict.same and ran,
        "reason": verdict.reason if ran else f"kernels did not run: {passed_on}",
        "distance": verdict.distance,
        "noise": verdict.noise,
        "p": verdict.p,
        "largest_difference": verdict.largest,
        "first_and_last_loss": [eager["losses"][0], eager["losses"][-1], ours["losses"][-1]],
        "eager_step_ms": eager["step_s"] * 1e3,
        "kmem_step_ms": ours["step_s"] * 1e3,
    }
    text = json.dumps(data, indent=1)
    (asked.out / "verdict.json").write_text(f"{text}\n", encoding="utf-8")
    sys.stdout.write(f"{text}\n")
    return data


def _draw(place: Path, eager: Curve, ours: Curve, noise: Sequence[Curve]) -> None:
    """Both curves, and how far each lies from the mean of eager's."""
    import matplotlib  # half a second that nothing else here should pay

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (whole, near) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    middle = [statistics.fmean(each) for each in zip(eager, *noise, strict=True)]
    for curve in noise:
        whole.plot(curve, color="0.8")
        near.plot([a / b - 1 for a, b in zip(curve, middle, strict=True)], color="0.8")
    for name, curve in (("eager", eager), ("kmem", ours)):
        whole.plot(curve, label=name, linestyle="--" if name == "kmem" else "-")
        near.plot([a / b - 1 for a, b in zip(curve, middle, strict=True)], label=name)
    whole.set(yscale="log", ylabel="loss")
    near.set(xlabel="step", ylabel="from the mean of eager's")
    whole.legend()
    figure.tight_layout()
    figure.savefig(place, dpi=120)
    pyplot.close(figure)


def _make_kernels(asked: argparse.Namespace) -> Path:
    """A run for training, beside the curves; one that was ended goes on."""
    run: Path = asked.out / "run"
    command = [sys.executable, "-m", "kmem", "optimize", asked.model, "--pieces", "--backward"]
    command += ["--mode", "train", "--out", str(run), "--minutes", f"{asked.minutes:g}"]
    command += [word for each in asked.input for word in ("--input", each)]
    command += [*(["--target", asked.target] if asked.target else [])]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)
    return run


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model as kmem optimize takes it")
    parser.add_argument("--run", type=Path, help="of the model with --mode train --backward")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--input", action="append", default=[], help="as of kmem optimize")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--trainings", type=int, default=_LEAST_TRAININGS, help="of eager")
    parser.add_argument("--verdict-only", action="store_true", help="train nothing more")
    parser.add_argument("--rate", type=float, default=1e-4, help="of AdamW; default: 1e-4")
    parser.add_argument("--minutes", type=float, default=20.0, help="for kernels, without --run")
    parser.add_argument("--target", help="a device to estimate for, where there is no GPU")
    asked = parser.parse_args()
    if asked.trainings < _LEAST_TRAININGS:
        parser.error(f"--trainings {asked.trainings} show no 5%; {_LEAST_TRAININGS} do")
    return asked


if __name__ == "__main__":
    sys.exit(main())

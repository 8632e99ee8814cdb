"""Time the before and after of every skill example at full size on this machine's GPU: `python
tools/gpu_skill_examples.py [NAME...]`.

Both sides run interleaved on the same inputs with L2 overwritten before every sample; latencies are
medians of CUDA-event times, speedup is before / after. Prints a table and writes
skill_examples.json under $OUT (default: the working directory). Stops starting pairs after
`--seconds`, and says which were left out. Not a verdict: `kmem verify` judges; this shows whether a
text's own example keeps its promise.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import triton

from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem

SKILLS = Path(__file__).parent.parent / "skills"
#: More than any L2 here (50 MiB on an H200), so that the next run starts cold.
FLUSH_BYTES = 256 * 2**20
#: A pair's samples take about this long in total.
SAMPLE_SECONDS = 1.0
WANTED_SPEEDUP = 1.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="skills to time (default: all with examples)")
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="start no pair after this time (default: 240)"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here; run this on the GPU machine")
    names = options.names or sorted(
        path.parent.parent.name for path in SKILLS.glob("*/examples/after.py")
    )
    began = time.monotonic()
    rows = []
    left_out = []
    print(
        f"{'skill':34} {'before ms':>10} {'after ms':>10} {'speedup':>8} {'difference':>10} "
        f"{'samples':>7}"
    )
    for name in names:
        if time.monotonic() - began > options.seconds:
            left_out.append(name)
            continue
        row = time_pair(SKILLS / name / "examples")
        rows.append({"skill": name, **row})
        times = f"{row['before_ms']:10.4f} {row['after_ms']:10.4f} {row['speedup']:8.2f}"
        print(f"{name:34} {times} {row['difference']:10.1e} {row['samples']:7d}", flush=True)
    kept = sum(row["speedup"] >= WANTED_SPEEDUP for row in rows)
    print(
        f"{kept} of {len(rows)} at least {WANTED_SPEEDUP}x; left out for time: "
        f"{', '.join(left_out) or 'none'}"
    )
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pairs": rows,
        "left_out": left_out,
    }
    out = Path(os.environ.get("OUT", ".")) / "skill_examples.json"
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def time_pair(pair: Path) -> dict[str, float | int]:
    """Median latencies of both sides, their ratio, the relative difference of their results, and
    the number of samples of each.
    """
    modules = [execute_problem(load_problem(pair / f"{side}.py")) for side in ("before", "after")]
    torch.manual_seed(0)
    before, after = (build_model(module, "cuda").eval() for module in modules)
    after.load_state_dict(before.state_dict())
    inputs = build_inputs(modules[0], "cuda")
    with torch.no_grad():
        difference = relative_difference(after(*inputs), before(*inputs))
        # warm: both were compiled by the comparison
        once = {model: sample_ms(model, inputs) for model in (before, after)}
        samples = max(5, min(60, int(SAMPLE_SECONDS * 1e3 / sum(once.values()))))
        times: dict[torch.nn.Module, list[float]] = {before: [], after: []}
        for _ in range(samples):
            for model in (before, after):
                times[model].append(sample_ms(model, inputs))
    before_ms, after_ms = (statistics.median(times[model]) for model in (before, after))
    del inputs, before, after, times, once
    torch.cuda.empty_cache()
    return {
        "before_ms": before_ms,
        "after_ms": after_ms,
        "speedup": before_ms / after_ms,
        "difference": difference,
        "samples": samples,
    }


def sample_ms(model: torch.nn.Module, inputs: list[object]) -> float:
    """One forward between two events, L2 overwritten just before it."""
    torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda").zero_()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    model(*inputs)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def relative_difference(got: object, expected: object) -> float:
    """Largest relative Frobenius difference of outputs; for integers the share that differs."""
    pairs = zip(
        *(value if isinstance(value, tuple) else (value,) for value in (got, expected)), strict=True
    )
    worst = 0.0
    for first, second in pairs:
        if first.is_floating_point():
            norm = torch.linalg.vector_norm(second, dtype=torch.float32)
            worst = max(
                worst, float(torch.linalg.vector_norm(first - second, dtype=torch.float32) / norm)
            )
        else:
            worst = max(worst, float((first != second).float().mean()))
    return worst


if __name__ == "__main__":
    main()

"""The result of a run as data for programs."""

from collections.abc import Sequence
from dataclasses import asdict

from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.records import Run, RunResult
from kmem.run.directory import RunDirectory


def result_data(
    run: Run, result: RunResult, directory: RunDirectory, usage: Sequence[Usage]
) -> dict[str, object]:
    """The result as one flat JSON object; times in ms, `estimated` true where no GPU measured them.

    `recalled` says that the winner came from memory: its speedup is no new gain. `usage` has a row
    per role and model, the total last.
    """
    best = result.best
    timing = best.measurement.timing if best else None
    return {
        "run": run.id,
        "problem": result.problem,
        "target": result.target,
        "estimated": result.estimated,
        "status": "passed" if best else "baseline_is_best",
        "latency_ms": timing.latency_ms if timing else None,
        "speedup": result.speedup,
        "ratio_low": timing.ratio_low if timing else None,
        "ratio_high": timing.ratio_high if timing else None,
        "baselines_ms": {
            baseline.name: baseline.timing.latency_ms
            for baseline in result.baselines
            if baseline.timing
        },
        "paired_baseline_ms": timing.reference_ms if timing else None,
        "captured_ms": timing.graph_ms if timing else None,
        "captured_speedup": timing.graph_ratio if timing else None,
        "bound_ms": result.bound.time_ms if result.bound else None,
        "speed_of_light": result.speed_of_light,
        "precision": run.contract.precision.value,
        "purity": run.contract.purity.value,
        "library_share": best.measurement.library_share if best else None,
        "recalled": result.recalled,
        "authors": list(run.authors),
        "strategy": run.strategy.value,
        "usage": [asdict(row) for row in (*usage, total_usage(usage))],
        "flags": list(result.flags),
        "within_kernelbench": "beyond_kernelbench" not in result.flags if best else None,
        "measurements": result.measurements,
        "unverified_faster": result.unverified_faster,
        "seconds": round(result.seconds, 1),
        "choices": [
            {
                "site": choice.site,
                "operator": choice.operator,
                "recipe": choice.recipe,
                "knobs": dict(choice.knobs),
                "members": choice.members,
            }
            for choice in (best.candidate.kernel.choices if best else ())
        ],
        "best_kernel": str(directory.best_kernel) if best else None,
        "top_kernels": [str(path) for path in directory.top_kernels()],
        "report": str(directory.root / "report.md"),
        "reason": result.reason,
    }

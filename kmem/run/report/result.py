"""What a run came to, for a program or a notebook."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch

from kmem.errors import OutputError
from kmem.records import Run, RunResult
from kmem.run.report.first_screen import summarise


@dataclass(frozen=True, slots=True)
class Result:
    """One finished run: what it was asked, what came of it, and where its files lie.

    `print(result)` is the verdict in one sentence; a notebook shows a table.
    """

    run: Run
    outcome: RunResult

    @property
    def directory(self) -> Path:
        """The run directory: kernels, report, evidence."""
        return Path(self.run.out_dir)

    @property
    def is_faster(self) -> bool:
        """Whether a verified kernel beats the best baseline."""
        return self.outcome.best is not None

    @property
    def speedup(self) -> float | None:
        """Best baseline's time over the kernel's; None if nothing beat the baseline."""
        return self.outcome.speedup

    @property
    def estimated(self) -> bool:
        """Whether times are estimates, because there was no GPU."""
        return self.outcome.estimated

    @property
    def latency_ms(self) -> float | None:
        """Time of one forward with the kernel, in milliseconds; None without a kernel."""
        best = self.outcome.best
        return best.measurement.latency_ms if best is not None else None

    @property
    def baselines_ms(self) -> Mapping[str, float]:
        """Time of one forward of each baseline that ran, in milliseconds, by name."""
        return {
            baseline.name: baseline.timing.latency_ms
            for baseline in self.outcome.baselines
            if baseline.timing is not None
        }

    @property
    def kernel_path(self) -> Path | None:
        """The winner's file, which defines ModelNew; None if nothing beat the baseline."""
        return self.directory / "best_kernel.py" if self.is_faster else None

    @property
    def evidence_path(self) -> Path | None:
        """The bundle behind the winner's verdict, which `kmem verify` repeats; None without one."""
        best = self.outcome.best
        if best is None:
            return None
        place = self.directory / "evidence" / f"{best.candidate.kernel.hash}.json"
        return place if place.is_file() else None

    @property
    def report(self) -> str:
        """The run's report.md, as Markdown.

        Raises OutputError: if the run directory is gone.
        """
        try:
            return (self.directory / "report.md").read_text(encoding="utf-8")
        except OSError as ex:
            raise OutputError(
                f"The report of run {self.run.id} is not in {self.directory}: "
                f"{ex.strerror or ex}; run the problem again"
            ) from ex

    def load_kernel(self) -> type[torch.nn.Module]:
        """The class ModelNew of the winner: the constructor and state_dict are those of Model.

        Raises OutputError: if nothing beat the baseline, or the file is gone.
        """
        place = self.kernel_path
        if place is None:
            raise OutputError(f"Run {self.run.id} has no kernel: {summarise(self.outcome)}")
        if not place.is_file():
            raise OutputError(f"{place} is gone; run the problem again, or copy the kernel back")
        name = f"kmem_kernel_{self.outcome.best.candidate.kernel.hash[:16]}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, place)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name].ModelNew

    def __str__(self) -> str:
        return f"{self.outcome.problem}: {summarise(self.outcome)}"

    def _repr_html_(self) -> str:
        unit = "ms, estimated" if self.estimated else "ms"
        times = [("kernel", self.latency_ms)] if self.latency_ms is not None else []
        times += sorted(self.baselines_ms.items(), key=lambda entry: entry[1])
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td style='text-align:right'>{time:.4g}</td></tr>"
            for name, time in times
        )
        return (
            f"<p><b>{escape(self.outcome.problem)}</b>: {escape(summarise(self.outcome))}</p>"
            f"<table><tr><th></th><th>{unit}</th></tr>{rows}</table>"
            f"<p><code>{escape(str(self.directory))}</code></p>"
        )

"""`kmem.verify`: one kernel before the judge."""

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypedDict, Unpack

from kmem.api.keywords import choose, refuse_unknown
from kmem.devices import detect_device, named_target
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Baseline, Contract, Measurement, Precision, Purity, Status
from kmem.run.evaluation.single import (
    Terms,
    find_checkers,
    judge_case,
    make_case,
    read_kernel,
    read_small_constants,
)


class JudgeTerms(TypedDict, total=False):
    """The keywords of `verify`; what is not given is as `kmem verify` has it."""

    precision: str  # match, tf32 or bf16; default: match
    purity: str  # library or triton; default: library
    mode: str  # train or eval; default: as the file leaves the module
    seed: int  # default: drawn anew, so that no kernel can know it
    checks: tuple[str, ...]  # names of further source checks
    evidence: str | Path  # directory for the evidence of a kernel that passes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of a kernel file; true if it passed."""

    measurement: Measurement
    baselines: tuple[Baseline, ...]

    def __bool__(self) -> bool:
        return self.measurement.status is Status.PASSED

    @property
    def reason(self) -> str:
        """Why it did not pass; empty if it did."""
        return "" if self else self.measurement.log.strip() or self.measurement.status.value

    @property
    def latency_ms(self) -> float | None:
        """Time of one forward in milliseconds; None if it did not pass or has no estimate."""
        latency_ms = self.measurement.latency_ms
        return latency_ms if latency_ms is not None and math.isfinite(latency_ms) else None

    def __str__(self) -> str:
        if not self:
            return f"{self.measurement.status.value}: {self.reason.splitlines()[-1]}"
        if self.latency_ms is None:
            return "passed"
        kind = "estimated " if self.measurement.estimated else ""
        return f"passed, {kind}{self.latency_ms:.4g} ms"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


def verify(
    problem: str | Path,
    kernel: str | Path,
    *,
    target: str | None = None,
    **terms: Unpack[JudgeTerms],
) -> Verdict:
    """Judge a kernel file against the module it replaces, as `kmem verify` does.

    Without a GPU the verdict comes from the Triton interpreter on small sizes and the time is an
    estimate.

    Args:
        problem: a file with Model and get_inputs, or a directory with problem.py.
        kernel: a file with ModelNew.
        target: device to estimate for where there is no GPU; default: h200.

    Raises ProblemError, CaseError, TargetError, NotRegistered: if something cannot be judged as it
        is, each with its remedy.
    """
    refuse_unknown("verify", terms, JudgeTerms)
    registry = collect(build_plugin_manager())
    present = detect_device()
    device = present or named_target(target or "h200")
    evidence = terms.get("evidence")
    asked = Terms(
        Contract(
            choose(Precision, terms.get("precision", "match")),
            choose(Purity, terms.get("purity", "library")),
        ),
        terms.get("seed"),
        find_checkers(registry, terms.get("checks", ())),
        Path(evidence) if evidence is not None else None,
        terms.get("mode"),
    )
    place = Path(kernel)
    case = make_case(
        Path(problem),
        read_kernel(place),
        asked,
        name=str(place),
        small_constants=read_small_constants(place),
    )
    return Verdict(*judge_case(case, device, gpu=present is not None, announce=lambda text: None))

"""The nouns of kmem: frozen records and enums, standard library only.

Units are in the names; ratios are 0..1 unless `_pct`; speedup is reference time over candidate
time, everywhere. Identity is a content hash of exactly what matters; each hash says what that is.

In the order in which a run makes them:

- identity.py: what tells records apart: a hash of exactly what matters.
- problem.py: what is to be made fast, on what, and how fast that could be: problem, workload,
  contract, device, bound.
- kernel.py: a kernel, the choices that wrote it, and what a profiler saw of it.
- diagnosis.py: what limits a kernel and what is offered against it: signature, diagnosis,
  prescriptions, claims.
- plan.py: what a round tries: tasks, the candidates written for them, vetoes, and the lessons of
  earlier rounds.
- verdict.py: what the judge says of a kernel: status, errors, times; and an attempt, which is a
  candidate with its verdict.
- outcome.py: what the ledger keeps of an attempt, and what a run gets back from it.
- background.py: what a run knows beside its own attempts.
- run.py: a run: what it was asked, what it may spend, and what it ended with.
"""

from kmem.records.background import Background, Fault
from kmem.records.diagnosis import (
    Bottleneck,
    Claim,
    ClaimCheck,
    Decider,
    Diagnosis,
    Evidence,
    LaunchShare,
    Prescription,
    Signature,
)
from kmem.records.identity import ABSENT_IF_NONE, Knob, content_hash
from kmem.records.kernel import Kernel, Launch, Profile, SiteChoice, Structure
from kmem.records.outcome import (
    REDACTED,
    Descent,
    Experience,
    MeasuredKernel,
    Outcome,
    Recalled,
    is_aged,
    is_recipe_component,
    recipe_component,
)
from kmem.records.plan import Candidate, Effect, Lesson, Move, Plan, Task, Veto
from kmem.records.problem import (
    DTYPE_BYTES,
    Bound,
    Contract,
    Device,
    Precision,
    Problem,
    Purity,
    TensorSpec,
    Workload,
)
from kmem.records.run import (
    Budget,
    ModelChoice,
    Run,
    RunResult,
    RunState,
    Strategy,
    UserTest,
)
from kmem.records.verdict import (
    BASELINES,
    Attempt,
    Baseline,
    ErrorReport,
    Measurement,
    Status,
    Timing,
    fastest_baseline,
    is_steady,
)

__all__ = [
    "ABSENT_IF_NONE",
    "Attempt",
    "BASELINES",
    "Background",
    "Baseline",
    "Bottleneck",
    "Bound",
    "Budget",
    "Candidate",
    "Claim",
    "ClaimCheck",
    "Decider",
    "Contract",
    "DTYPE_BYTES",
    "Device",
    "Descent",
    "Diagnosis",
    "Effect",
    "ErrorReport",
    "Evidence",
    "LaunchShare",
    "Experience",
    "Fault",
    "Kernel",
    "Knob",
    "Launch",
    "Lesson",
    "MeasuredKernel",
    "Measurement",
    "ModelChoice",
    "Move",
    "Outcome",
    "Plan",
    "Precision",
    "Prescription",
    "Problem",
    "Profile",
    "Purity",
    "REDACTED",
    "Recalled",
    "Run",
    "RunResult",
    "RunState",
    "Signature",
    "SiteChoice",
    "Status",
    "Strategy",
    "Structure",
    "Task",
    "TensorSpec",
    "Timing",
    "UserTest",
    "Veto",
    "Workload",
    "content_hash",
    "fastest_baseline",
    "is_aged",
    "is_recipe_component",
    "is_steady",
    "recipe_component",
]

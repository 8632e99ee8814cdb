"""Every record survives a round trip through JSON, and an illegal one cannot be read back."""

import dataclasses
import math

import pytest

from kmem import records
from kmem.records import (
    Attempt,
    Background,
    Baseline,
    Bottleneck,
    Bound,
    Budget,
    Candidate,
    Claim,
    ClaimCheck,
    Contract,
    Decider,
    Descent,
    Device,
    Diagnosis,
    Effect,
    ErrorReport,
    Evidence,
    Experience,
    Fault,
    Kernel,
    Launch,
    LaunchShare,
    Lesson,
    MeasuredKernel,
    Measurement,
    ModelChoice,
    Move,
    Outcome,
    Plan,
    Precision,
    Prescription,
    Problem,
    Profile,
    Purity,
    Recalled,
    Run,
    RunResult,
    Signature,
    SiteChoice,
    Status,
    Structure,
    Task,
    TensorSpec,
    Timing,
    UserTest,
    Veto,
    Workload,
)
from kmem.serialize import from_data, from_json, to_data, to_json

CONTRACT = Contract(Precision.TF32, Purity.TRITON)
CHOICE = SiteChoice(
    "%3", "softmax", "online-softmax", (("BLOCK", 1024), ("order", "row"), ("warps", 8))
)
KERNEL = Kernel("import triton\n# ünï", "ab" * 32, (CHOICE,), ("algebraic",))
TIMING = Timing(1.25, 1.2, 1.5, 30, "compile", 2.5, 2.0, 1.9, 2.1)
CLAIM = Claim("traffic_ratio", "<=", 0.7, relative=True)
CHECK = ClaimCheck(CLAIM, 2.0, None, None)
TASK = Task(
    Move.FIX, "coalesce-loads", "ab" * 32, 3, "uncoalesced", (CHOICE,), "llm", (CLAIM,), "read rows"
)
CANDIDATE = Candidate(KERNEL, TASK, "recipes", 0.5)
MEASUREMENT = Measurement(
    Status.PASSED,
    TIMING,
    False,
    (ErrorReport("normal", 1, 1e-7, 2e-7, 4e-7),),
    ("recalled",),
    "log",
    0.0,
    {"gpu": "h200"},
)
SIGNATURE = Signature({"traffic_ratio": 1.5, "waves": 0.25}, ("traffic_ratio",))
DECIDER = Decider("memory_stall_pct", ("a__counter.sum",), (Bottleneck.LATENCY,))
SHARE = LaunchShare("kernel_0", 0.5, 1.0, Bottleneck.UNKNOWN, ("softmax",))
DIAGNOSIS = Diagnosis(
    Bottleneck.UNCOALESCED,
    (Evidence("sector_efficiency_pct", 25.0, "<=", 50.0),),
    SIGNATURE,
    0.3,
    None,
    "a summary",
    "kernel_0",
    (Bottleneck.LATENCY,),
    True,
    (Bottleneck.LATENCY,),
    (DECIDER,),
    ("softmax",),
    (SHARE,),
)
ATTEMPT = Attempt(1, CANDIDATE, MEASUREMENT, 2.5, Bottleneck.UNCOALESCED)
BASELINE = Baseline("eager", None, True, "failed")
BOUND = Bound(4096, {"fp32": 1e9, "special": 0.0}, 0.001, "bytes")
OUTCOME = Outcome(
    "softmax",
    "g",
    "s",
    ("softmax",),
    "full",
    "h200",
    "sm_90",
    CONTRACT,
    "online-softmax",
    (CHOICE,),
    Move.SEED,
    None,
    SIGNATURE,
    "src",
    None,
    Status.PASSED,
    1.0,
    0.9,
    1.1,
    2.0,
    "eager",
    2.0,
    2.0,
    1.9,
    2.1,
    0.5,
    ("flag",),
    {"triton": "3.6"},
    "here",
    "2026-01-01T00:00:00+00:00",
    (128, 4096),
)

EXAMPLES = [
    UserTest("test_it.py", "def test_it(): ...\n", True),
    CONTRACT,
    CHOICE,
    KERNEL,
    TIMING,
    TASK,
    CANDIDATE,
    MEASUREMENT,
    SIGNATURE,
    DECIDER,
    SHARE,
    UserTest("test_own.py", "def test_it(): ...", True),
    DIAGNOSIS,
    ATTEMPT,
    BASELINE,
    BOUND,
    OUTCOME,
    Descent("g" * 64, "s" * 64, (64, 4096), ("row-norm",), (None, 2.0, 1.5), True, 0.5),
    TensorSpec((2, 3), "float32", (3, 1)),
    Problem("p", "/p.py", "class Model: ..."),
    Workload("small", (("N", 8),), True),
    Device(
        "h200",
        "NVIDIA H200",
        "sm_90",
        32,
        132,
        2048,
        32,
        65536,
        233472,
        232448,
        1,
        2,
        4.8e12,
        4.8e12,
        {"fp32": 67e12},
        0.003,
        "datasheet",
        True,
    ),
    Launch("k", None, (1, 2, 3), None, {"gpu__time_duration.sum": 12.5}),
    Structure({"dots": 1.0, "masks": 0.5}, ("tile-matmul",)),
    Profile("", "ncu", "h200", False, (Launch("k", 0.5, None, (128, 1, 1), {}),)),
    Evidence("waves", 0.1, "<=", 1.0),
    CLAIM,
    CHECK,
    Lesson(2, "ab" * 32, "unaided", "reading once did not help", (CHECK,), worth_a_skill=True),
    Lesson(2, "ab" * 32, "unaided", "reading once helped", effect=Effect.FASTER),
    ModelChoice("planner", "openai", "large", "http://localhost:1/v1", 0.5, "high", 4096),
    MeasuredKernel((SiteChoice("softmax", "softmax", "online-softmax", ()),), 1.2),
    Experience("online-softmax", (("BLOCK", 1024),), 1.2, None, "graph", "structure", (4096, 8192)),
    Prescription("coalesce-loads", 0.5, ("similar",)),
    Veto("coalesce-loads", "tried"),
    Plan((TASK,), (Veto("x", "y"),), "because"),
    ErrorReport("normal", 0, 0.0, 1e-7, 1e-6),
    Recalled(OUTCOME, None, False, math.inf),
    Fault(Status.BUILD_FAILED, "no such name", 3),
    Background((BASELINE,), versions={"triton": "3.9.0"}),
    Budget(3, 1.5, 8, 0.9),
    Run(
        "r1",
        Problem("p", "/p.py", "x"),
        "h200",
        CONTRACT,
        Budget(),
        "rw",
        7,
        "/out",
        "2026-01-01T00:00:00+00:00",
    ),
    RunResult(
        "r1",
        "p",
        "h200",
        False,
        ATTEMPT,
        (BASELINE,),
        BOUND,
        2.0,
        0.9,
        True,
        12,
        33.5,
        "target reached",
        ("recalled",),
    ),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_survives_a_round_trip_with_its_types(record: object) -> None:
    again = from_json(type(record), to_json(record))
    assert again == record
    assert to_json(again) == to_json(record)
    assert from_data(type(record), to_data(record)) == record


def test_the_examples_name_every_record() -> None:
    every = {
        value
        for value in vars(records).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    }
    assert every == {type(example) for example in EXAMPLES}


def test_knobs_keep_strings_that_look_like_numbers() -> None:
    choice = SiteChoice("%1", "sum", "reduce", (("BLOCK", 64), ("mode", "64")))
    assert from_json(SiteChoice, to_json(choice)).knobs == (("BLOCK", 64), ("mode", "64"))


def test_a_latency_without_a_pass_cannot_be_read_back() -> None:
    data = to_data(MEASUREMENT) | {"status": "wrong_values"}
    with pytest.raises(ValueError, match="timing is set if and only if passed"):
        from_data(Measurement, data)


def test_an_unknown_status_names_the_field() -> None:
    with pytest.raises(ValueError, match="status"):
        from_data(Measurement, to_data(MEASUREMENT) | {"status": "great"})


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="tuple is not a record"):
        to_data((1, 2))
    with pytest.raises(TypeError, match="object cannot be part of a record"):
        to_data(Kernel(object()))  # type: ignore[arg-type]

"""The nouns of kmem: frozen records and enums, standard library only.

Units are in the names; ratios are 0..1 unless `_pct`; speedup is reference time over candidate
time, everywhere. Identity is a content hash of exactly what matters; each hash says what that is.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

Knob: TypeAlias = int | str

#: Metadata of a field that came after records were stored: None is not written, so that what was
#: stored before keeps its hash.
ABSENT_IF_NONE: Mapping[str, bool] = {"absent_if_none": True}


def content_hash(*parts: str) -> str:
    """SHA-256 over the parts, length-prefixed so that no two different lists collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


class Status(Enum):
    """What became of a candidate. Only PASSED carries a latency."""

    PASSED = "passed"
    REFUSED_SOURCE = "refused_source"  # the source check found something no kernel needs
    BUILD_FAILED = "build_failed"  # does not import or does not compile
    CRASHED = "crashed"  # raised, exited or broke the GPU context
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    # number, shape, dtype or type of outputs, constructor, state_dict
    WRONG_CONTRACT = "wrong_contract"
    WRONG_VALUES = "wrong_values"  # error above the accuracy contract
    MUTATED_INPUT = "mutated_input"
    NOT_REPEATABLE = "not_repeatable"
    IMPURE = "impure"  # GPU time or operators outside what --purity allows
    IMPLAUSIBLE = "implausible"  # faster than the physical floor, or clocks disagree
    INTERRUPTED = "interrupted"  # the judge was stopped; says nothing about the candidate


class Bottleneck(Enum):
    """Bottlenecks, named by what fixes them."""

    REDUNDANT_TRAFFIC = "redundant_traffic"
    UNCOALESCED = "uncoalesced"
    DRAM_BANDWIDTH = "dram_bandwidth"
    L2_OR_L1_BANDWIDTH = "l2_or_l1_bandwidth"
    TENSOR_CORE_IDLE = "tensor_core_idle"
    FMA_BOUND = "fma_bound"
    SPECIAL_FUNCTION_BOUND = "special_function_bound"
    LATENCY = "latency"
    LOW_PARALLELISM = "low_parallelism"
    REGISTER_SPILL = "register_spill"
    OCCUPANCY_LIMITED = "occupancy_limited"
    DIVERGENCE_OR_MASKING = "divergence_or_masking"
    LAUNCH_OVERHEAD = "launch_overhead"
    HOST_OVERHEAD = "host_overhead"
    ALGORITHMIC = "algorithmic"
    AT_BOUND = "at_bound"


class Precision(Enum):
    """The declared accuracy contract: match eager's own, or a looser one that the baseline shares."""

    MATCH = "match"  # PyTorch's default flags: exact fp32 matmul, TF32 convolutions
    TF32 = "tf32"  # torch.backends.cuda.matmul.allow_tf32 = True, for baseline and candidate
    BF16 = "bf16"  # module and floating inputs cast to bfloat16, for baseline and candidate


class Purity(Enum):
    """Whether library calls may compete inside a candidate."""

    LIBRARY = "library"
    TRITON = "triton"  # all GPU time in kernels compiled from the emitted file


@dataclass(frozen=True, slots=True)
class Contract:
    """What a candidate is held to; part of every outcome's identity."""

    precision: Precision = Precision.MATCH
    purity: Purity = Purity.LIBRARY


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype ("float32") and strides (in elements) of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A file in the KernelBench contract: `Model`, `get_inputs()`, optional `get_init_inputs()` and
    `get_small_inputs()`.
    """

    name: str
    path: str
    source: str

    @property
    def hash(self) -> str:
        """Over the source text alone: where the file lies does not matter."""
        return content_hash(self.source)


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes to run a problem at: `full` as the file says, or `small` with size constants replaced
    for machines without a GPU.

    `constants` are the module-level names and values put in place of the file's own; `small_inputs`
    says that the problem's own `get_small_inputs()` makes the inputs instead.
    """

    name: str
    constants: tuple[tuple[str, int | tuple[int, ...]], ...] = ()
    small_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator: properties, and peak rates (dense, never "with sparsity") either measured
    here or from its datasheet.

    `peak_flops_per_s` keys: fp32, tf32, bf16, fp16 (tensor core where the name has one), special
    (special-function operations). `read_bytes_per_s` is a read-only stream, `dram_bytes_per_s` a
    copy counting bytes read plus written.
    """

    name: str  # "h200"
    full_name: str  # "NVIDIA H200"
    arch: str  # "sm_90" or "gfx942"
    warp_size: int
    sm_count: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    l2_bytes: int
    memory_bytes: int
    dram_bytes_per_s: float
    read_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    launch_ms: float  # time one extra kernel costs on the stream
    source: str  # datasheet URL, or "measured YYYY-MM-DD" with versions
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """What the traced graph needs at least, and how long that takes on a device.

    `flops` keys are those of `Device.peak_flops_per_s`; `limiter` is "bytes" or one of them.
    `time_ms` is the largest of the single times: the classic roofline. Source: Williams, Waterman,
    Patterson, "Roofline", CACM 52(4), 2009.
    """

    bytes: int
    flops: Mapping[str, float]
    time_ms: float
    limiter: str


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """Which recipe wrote one site of the graph, and with which knobs (sorted by name)."""

    site: str
    operator: str
    recipe: str
    knobs: tuple[tuple[str, Knob], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole emitted module: one Python file with `ModelNew`."""

    source: str
    parent: str | None = None  # hash of the kernel it was derived from
    choices: tuple[SiteChoice, ...] = ()  # empty if no recipe wrote it
    flags: tuple[str, ...] = ()  # "algebraic", "specialised", ...
    #: Values a tuner may put in place of module-level constants of the source, by name; of kernels
    #: that no recipe wrote.
    knob_space: tuple[tuple[str, tuple[Knob, ...]], ...] = ()

    @property
    def hash(self) -> str:
        """Over the source text alone."""
        return content_hash(self.source)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a forward, with raw counters under the profiler's own names."""

    name: str
    duration_ms: float | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """Every launch of one forward, as one profiler saw it."""

    kernel: str  # hash; "" for a report made elsewhere
    profiler: str  # ncu, cupti, static
    device: str
    estimated: bool
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Normalised dimensions of a profile (vocabulary.SIGNATURE_METRICS), in natural units; absent
    means unknown.
    """

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a diagnosis: metric, value, and the threshold it crossed."""

    metric: str
    value: float
    comparison: str  # ">=" or "<="
    threshold: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a kernel, by arithmetic: the bottleneck, its evidence, and the time that removing
    it could save.
    """

    bottleneck: Bottleneck
    evidence: tuple[Evidence, ...]
    signature: Signature
    speed_of_light: float | None  # bound / time; None if no bound is known
    headroom_ms: float | None
    summary: str  # one sentence; this is what is embedded
    hottest: str | None  # name of the launch that takes most time
    secondary: tuple[Bottleneck, ...] = ()
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Prescription:
    """A skill offered for a diagnosis, with its score and why."""

    skill: str
    score: float
    reasons: tuple[str, ...]
    # what it had earned when a run was offered it, in a sentence
    record: str | None = field(default=None, metadata=ABSENT_IF_NONE)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the next profile must show if a change did what it was for: a bound on one signature
    metric, so that it can be refuted.

    `relative` means that `number` is a multiple of the parent's value ("traffic_ratio <= 0.7x"),
    otherwise it is the value itself.
    """

    metric: str  # of vocabulary.SIGNATURE_METRICS
    comparison: str  # "<=" or ">="
    number: float
    relative: bool = False

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.number:g}{'x' if self.relative else ''}"


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A claim beside what was measured; `held` is None where a value is unknown."""

    claim: Claim
    before: float | None
    after: float | None
    held: bool | None


class Move(Enum):
    """Why a task is in a plan."""

    SEED = "seed"
    RECALL = "recall"
    TUNE = "tune"
    FIX = "fix"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to try: from which parent, with which skill, how many candidates."""

    move: Move
    skill: str
    parent: str | None
    samples: int
    reason: str
    choices: tuple[SiteChoice, ...] = ()  # knobs to start from; recalled ones for RECALL
    author: str = "recipes"  # who writes it
    claims: tuple[Claim, ...] = ()  # what must be seen if it works
    instruction: str = ""  # what a language model is to do; recipes need none


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a run learnt from one kernel, in a sentence: a refuted claim, or what a language model
    made of the measurement.
    """

    round: int
    kernel: str  # hash
    skill: str
    text: str
    checks: tuple[ClaimCheck, ...] = ()
    worth_a_skill: bool = False  # whether its author thinks that it holds beyond this problem


@dataclass(frozen=True, slots=True)
class Veto:
    """Something this run will not try, and why."""

    skill: str
    reason: str
    author: str = "recipes"  # whom it binds
    parent: str | None = None  # only from this kernel (hash); None: from any
    instruction: str = ""  # which unaided idea it speaks of


@dataclass(frozen=True, slots=True)
class Plan:
    """How a round spends its budget."""

    tasks: tuple[Task, ...]
    vetoes: tuple[Veto, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel somebody wrote for a task; `estimated_ms` is the cost model's prediction, for
    ranking only.
    """

    kernel: Kernel
    task: Task
    author: str
    estimated_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Accuracy on one input family: relative errors against the float64 oracle, and what eager
    itself makes.
    """

    family: str
    seed: int
    relative_error: float
    reference_error: float
    allowed_error: float


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one forward takes, and how that compares with a reference timed pair by pair in the
    same session.

    `ratio` is reference / candidate (a speedup), the median over pairs; the interval is a 95%
    bootstrap of that median.
    """

    latency_ms: float
    latency_ms_p20: float
    latency_ms_p80: float
    samples: int
    reference: str | None = None  # eager, compile, max_autotune, or a kernel hash
    reference_ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The judge's verdict on one kernel. `latency_ms` is set if and only if the status is PASSED.

    Raises ValueError on construction otherwise. `estimated` says that no GPU was there: correctness
    comes from the interpreter on the small workload and the latency from the compiled kernel's
    static profile.
    """

    status: Status
    timing: Timing | None
    estimated: bool
    errors: tuple[ErrorReport, ...] = ()
    flags: tuple[str, ...] = ()  # specialised, degenerate, algebraic, recalled, ...
    log: str = ""
    library_share: float | None = None  # share of GPU time in kernels not compiled from the file
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status is Status.PASSED) != (self.timing is not None):
            raise ValueError(
                f"status {self.status.value} with timing {self.timing}: a timing is set if and "
                f"only if passed"
            )

    @property
    def latency_ms(self) -> float | None:
        return self.timing.latency_ms if self.timing else None


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way to run the unmodified module, timed by the judge (or estimated from the graph)."""

    name: str  # eager, compile, max_autotune
    timing: Timing | None  # None if it failed; then `log` says why
    estimated: bool
    log: str = ""


def fastest_baseline(baselines: Sequence[Baseline]) -> Baseline | None:
    """The baseline to beat; None if none ran."""
    timed = [baseline for baseline in baselines if baseline.timing is not None]
    return min(timed, key=lambda baseline: baseline.timing.latency_ms, default=None)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate and what became of it, inside a run: the short-term memory."""

    round: int
    candidate: Candidate
    measurement: Measurement
    parent_ms: float | None
    bottleneck: Bottleneck | None = None  # the diagnosis it answered

    @property
    def speedup(self) -> float | None:
        """Parent time over this attempt's time; None if either is missing."""
        if self.measurement.latency_ms is None or self.parent_ms is None:
            return None
        return self.parent_ms / self.measurement.latency_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ledger keeps of a measured attempt: enough to learn from and to re-use.

    Every time in it was measured but `predicted_ms`.

    `graph_hash` identifies operators, shapes, dtypes and constants; `structure_hash` the same
    without sizes. `choices` are the recipe and knobs; `source_hash` names the kernel, whose text is
    stored apart (and may be left out of an export).
    """

    problem: str
    graph_hash: str
    structure_hash: str
    operators: tuple[str, ...]
    workload: str
    device: str
    arch: str
    contract: Contract
    skill: str
    choices: tuple[SiteChoice, ...]
    move: Move
    bottleneck: Bottleneck | None
    signature: Signature | None
    source_hash: str
    parent_hash: str | None
    status: Status
    latency_ms: float | None
    latency_ms_p20: float | None
    latency_ms_p80: float | None
    parent_ms: float | None
    baseline: str | None
    baseline_ms: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    bound_ms: float | None
    flags: tuple[str, ...]
    versions: Mapping[str, str]
    origin: str
    created_at: str  # ISO 8601, UTC
    # problem.graph.graph_sizes of the graph: how near two graphs of one structure are
    sizes: tuple[int, ...] = ()
    # of the run or verdict, where known: who repeats draws another
    seed: int | None = field(default=None, metadata=ABSENT_IF_NONE)
    # what the cost model had said, where one was asked
    predicted_ms: float | None = field(default=None, metadata=ABSENT_IF_NONE)

    @property
    def hash(self) -> str:
        """Over every field: the same measurement merged twice is one outcome.

        What is not known of seed and prediction is left out, as before there were such fields.
        """
        from dataclasses import asdict

        data = asdict(self)
        for name in ("seed", "predicted_ms"):
            if data[name] is None:
                del data[name]
        return content_hash(json.dumps(data, sort_keys=True, default=lambda value: value.value))


@dataclass(frozen=True, slots=True)
class Recalled:
    """A remembered winner for this graph (`exact`) or for a like one, best first."""

    outcome: Outcome
    source: str | None
    exact: bool
    # 0 for exact; mean absolute log2 ratio of sizes for the same structure; infinite where sizes
    # cannot be compared
    distance: float


@dataclass(frozen=True, slots=True)
class Experience:
    """A measured setting of a recipe: its time, what the cost model had said (None if it was not
    kept), and the graph it was for.
    """

    recipe: str
    knobs: tuple[tuple[str, Knob], ...]
    latency_ms: float
    predicted_ms: float | None
    graph: str  # its hash
    structure: str
    sizes: tuple[int, ...]  # problem.graph.graph_sizes of the graph


@dataclass(frozen=True, slots=True)
class Budget:
    """What one run may spend. `target_speed_of_light` stops it when reached.

    `usd` and `tokens` (input plus output) limit language models; None is no limit.
    """

    rounds: int = 4
    minutes: float = 3.0
    candidates_per_round: int = 12
    target_speed_of_light: float = 0.97
    usd: float | None = None
    tokens: int | None = None


class Strategy(Enum):
    """How a round's candidates are shared out over parents and directions."""

    GREEDY = "greedy"  # the best kernel, in the most promising direction
    BEAM = "beam"  # several parents, several distinct directions of each
    BANDIT = "bandit"  # the best kernel, directions by Thompson sampling
    BEST_OF_N = "best-of-n"  # independent first kernels: the control that search must beat


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which language model plays a role (or "any" role without a choice of its own), and how it is
    asked.
    """

    role: str
    provider: str
    model: str
    base_url: str | None = None
    temperature: float | None = None
    effort: str | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One `kmem optimize`: what was asked, so that it can be resumed exactly."""

    id: str
    problem: Problem
    target: str
    contract: Contract
    budget: Budget
    memory_mode: str  # off, read, rw
    seed: int
    out_dir: str
    created_at: str
    authors: tuple[str, ...] = ("recipes",)  # in the order in which they seed
    strategy: Strategy = Strategy.BANDIT
    models: tuple[ModelChoice, ...] = ()


class RunState(Enum):
    """Where a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run ends with; `best` is None if nothing beat the best baseline."""

    run: str
    problem: str
    target: str
    estimated: bool
    best: Attempt | None
    baselines: tuple[Baseline, ...]
    bound: Bound | None
    speedup: float | None  # best baseline / best
    speed_of_light: float | None
    recalled: bool
    measurements: int
    seconds: float
    reason: str  # why it stopped
    flags: tuple[str, ...] = ()
    # how often the loop looked at its clock in time before the minutes were over; None: they never
    # were
    looks_in_time: int | None = None

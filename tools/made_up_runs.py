"""Made-up runs of a plausible day, of which tools/picture_pages.py takes pictures."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from page_server import make_run
from test_memory_store import make_outcome

from kmem.memory.runs.runs import Verdict
from kmem.memory.store import Memory
from kmem.problem.breakdown import Breakdown, TimePart
from kmem.records import (
    Attempt,
    Baseline,
    Bottleneck,
    Bound,
    Candidate,
    Claim,
    ClaimCheck,
    Diagnosis,
    ErrorReport,
    Evidence,
    Kernel,
    Launch,
    Lesson,
    Measurement,
    Move,
    Plan,
    Prescription,
    Problem,
    Profile,
    Run,
    RunResult,
    RunState,
    Signature,
    SiteChoice,
    Status,
    Task,
    Timing,
    Veto,
)
from kmem.run.directory import BREAKDOWN, RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.serialize import to_json
from kmem.whole.state import ModelSettings, ModelState, PieceState, PieceStatus, write_state

#: Of a decoder's layers, repeated 12 times: where, what, and milliseconds, eager and at least.
PARTS = (
    ("layers.*.mlp.up", "linear", 12, 1.31, 0.61),
    ("layers.*.mlp.down", "linear", 12, 1.28, 0.61),
    ("layers.*.mlp", "gelu", 12, 0.94, 0.81),
    ("layers.*.attention.qkv", "linear", 12, 0.98, 0.46),
    ("layers.*.attention", "scaled_dot_product_attention", 12, 0.71, 0.19),
    ("layers.*.attention.out", "linear", 12, 0.35, 0.16),
    ("layers.*", "add", 24, 0.62, 0.58),
    ("layers.*.norm1", "layer_norm", 12, 0.49, 0.21),
    ("layers.*.norm2", "layer_norm", 12, 0.49, 0.21),
    ("head", "linear", 1, 0.83, 0.47),
    ("layers.*.attention", "contiguous", 12, 0.3, 0.28),
    ("embedding", "embedding", 1, 0.08, 0.02),
    ("norm", "layer_norm", 1, 0.05, 0.02),
    ("layers.*.attention", "mul", 12, 0.28, 0.02),
)
RUN, EARLIER, LIVE = "20260121-101500-3fa2", "20260120-164000-c9d1", "20260121-111500-77aa"
MODEL = "20260120-114500-e1d4"
PIECE = "20260120-121000-a77e"
PIECES = (
    PieceState(
        "attention", "blocks.0.attention", ("linear", "scaled_dot_product_attention", "linear"),
        12, 0.31, 0.09, (768,), PieceStatus.KEPT, None, 0.17, 171.0,
    ),
    PieceState(
        "mlp", "blocks.0.mlp", ("linear", "gelu", "linear"), 12, 0.22, 0.11, (768,),
        PieceStatus.KEPT, "20260120-121400-01b2", 0.15, 240.0,
    ),
    PieceState(
        "norm_add", "blocks.0", ("layer_norm", "add"), 24, 0.052, 0.02, (768,),
        PieceStatus.DROPPED, "20260120-121900-93d0", 0.049, 201.0,
        "the whole is not faster with it: 1.001x, 95% above 0.997x",
    ),
    PieceState(
        "patches", "embed", ("conv2d", "flatten", "add"), 1, 0.38, 0.1, (), PieceStatus.RUNNING,
        "20260120-122400-55aa", None, 60.0,
    ),
    PieceState("head", "head", ("layer_norm", "linear"), 1, 0.21, 0.05, ()),
)  # fmt: skip
BOUND = Bound(1_073_741_824, {"fp32": 1_342_177_280, "special": 134_217_728}, 0.2237, "bytes")
SOURCE = '''"""softmax: online-softmax at softmax."""

import torch
import triton
import triton.language as tl

BLOCK = {block}


@triton.jit
def softmax_rows(x, y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * width + columns, mask=columns < width, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * width + columns, values / tl.sum(values, axis=0), mask=columns < width)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=BLOCK, num_warps={warps})
        return y
'''
PROBLEM = '''"""A {name} over rows, as a module of a language model has it."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(65536, {width})]
'''
SKILLS = ("online-softmax", "split-reduction", "online-softmax", "vectorised-loads")
MOVES = (Move.SEED, Move.TUNE, Move.FIX, Move.TUNE)
TIMES = (0.92, 0.71, None, 0.55, 0.61, 0.39, None, 0.412, 0.301, 0.33, 0.288, 0.294)
SAID = (
    ("trace", "tracing softmax and finding the bound for h200"),
    ("recall", "memory offers 2 kernels or settings for this graph"),
    ("profile", "profiling kernel 8c1f0e2d93ab"),
    ("diagnose", "moves 1.9x the bytes that it must: each row is read twice"),
    ("orchestrate", "round 2: the fastest kernel, three directions of the bandit"),
    ("measure", "judging 12 candidates"),
    ("measure", "3 of 12: online-softmax: passed"),
)


def make_attempt(
    place: int, latency_ms: float | None, made: list[Attempt], scale: float
) -> Attempt:
    """A candidate made from one of those before."""
    skill, move = SKILLS[place % 4], MOVES[place % 4]
    parent = made[(place - 1) // 2] if place else None
    knobs = (("BLOCK", 256 << place % 4), ("num_warps", 4 << place % 3))
    kernel = Kernel(
        SOURCE.format(block=256 << place % 4, warps=f"{4 << place % 3}  # {scale:g}, {place}"),
        parent.candidate.kernel.hash if parent else None,
        (SiteChoice("softmax", "softmax", skill, knobs),),
    )
    claim = Claim("traffic_ratio", "<=", 0.7, True)
    reason = "expected to halve the bytes moved; won on 31 of 44 such graphs"
    task = Task(move, skill, kernel.parent, 1, reason, claims=(claim,))
    errors = tuple(
        ErrorReport(family, 7 + place, 2.1e-7, 2.4e-7, 4.8e-7, 0.44)
        for family in ("normal", "large values", "one hot", "denormal")
    )
    timing, log = None, "wrong_values: 12.1x what is allowed on large values"
    if latency_ms is not None:
        ms = latency_ms * scale
        timing, log = Timing(ms, 0.97 * ms, 1.04 * ms, 400, "compile", 0.61 * scale), ""
    status = Status.PASSED if timing else Status.WRONG_VALUES
    measurement = Measurement(status, timing, False, errors, log=log)
    before = parent.measurement.latency_ms if parent else None
    return Attempt(place // 4 + 1, Candidate(kernel, task, "recipes"), measurement, before)


def make_profile(attempt: Attempt, time_ms: float) -> Profile:
    """Three launches, with what a profiler counts of each."""
    shares = (("softmax_rows", 0.71), ("reduce_max_kernel", 0.2), ("fill_functor", 0.09))
    launches = tuple(
        Launch(
            name,
            share * time_ms,
            (4096, 1, 1),
            (256, 1, 1),
            {
                "dram__bytes_read.sum": share * 6.6e8,
                "dram__bytes_write.sum": share * 5.4e8,
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 81.0,
                "sm__warps_active.avg.pct_of_peak_sustained_active": 62.5,
                "launch__registers_per_thread": 40.0,
                "launch__waves_per_multiprocessor": 15.5,
            },
        )
        for name, share in shares
    )
    return Profile(attempt.candidate.kernel.hash, "ncu", "NVIDIA H200", False, launches, BOUND)


def keep_run(memory: Memory, run: Run, scale: float, count: int) -> list[Attempt]:
    """A run with its attempts, rounds, profiles and lessons, not finished yet."""
    memory.runs.start(run)
    made: list[Attempt] = []
    for place, latency_ms in enumerate(TIMES[:count]):
        made.append(make_attempt(place, latency_ms, made, scale))
        memory.runs.record_attempt(run.id, made[-1])
    evidence = (
        Evidence("traffic_ratio", 1.9, ">=", 1.3),
        Evidence("dram_throughput_pct", 81.0, ">=", 75.0),
    )
    text = "moves 1.9x the bytes that it must: each row is read twice"
    diagnosis = Diagnosis(
        Bottleneck.REDUNDANT_TRAFFIC, evidence, Signature({}), 0.52, 0.1, text, "softmax_rows"
    )
    offers = [
        Prescription("online-softmax", 0.9, ("softmax over rows", "won on 31 of 44 such graphs")),
        Prescription("split-reduction", 0.4, ("few rows for so many processors",)),
    ]
    for number in (1, 2):
        parent = made[2 * number - 1]
        memory.runs.put_diagnosis(run.id, number, parent.candidate.kernel.hash, diagnosis, offers)
        vetoes = (Veto("persistent-kernel", "refuted twice on this graph"),)
        memory.runs.put_plan(run.id, number, Plan((), vetoes, "the fastest kernel, two directions"))
    for each in made:
        if each.measurement.latency_ms is not None:
            memory.runs.put_profile(run.id, make_profile(each, each.measurement.latency_ms))
    last = made[-1].candidate
    check = ClaimCheck(last.task.claims[0], 1.9, 1.12, True)
    said = "online-softmax: traffic_ratio 1.9 became 1.12, as claimed"
    lesson = Lesson(2, last.kernel.hash, last.task.skill, said, (check,))
    memory.runs.put_lessons(run.id, 2, [lesson])
    memory.runs.put_seconds_spent(run.id, 14.0 * count)
    return made


def end_run(memory: Memory, run: Run, made: list[Attempt], scale: float) -> None:
    """End a run with its fastest candidate as the winner."""
    passed = [each for each in made if each.measurement.timing is not None]
    best = min(passed, key=lambda each: each.measurement.latency_ms or 0.0)
    timing = best.measurement.timing
    assert timing is not None
    base_ms = 0.61 * scale
    ratio = base_ms / timing.latency_ms
    final = replace(
        timing, reference_ms=base_ms, ratio=ratio, ratio_low=0.99 * ratio, ratio_high=1.01 * ratio
    )
    winner = replace(best, measurement=replace(best.measurement, timing=final))
    baselines = tuple(
        Baseline(name, Timing(ms * scale, 0.99 * ms * scale, 1.02 * ms * scale, 400), False)
        for name, ms in (("eager", 0.84), ("compile", 0.61), ("max_autotune", 0.63))
    )
    bound = replace(BOUND, time_ms=BOUND.time_ms * scale)
    result = RunResult(
        run.id, run.problem.name, run.target, False, winner, baselines, bound, ratio,
        bound.time_ms / timing.latency_ms, False, len(made), 171.0, "the rounds are used up",
    )  # fmt: skip
    memory.runs.put_verdict(run.id, best.candidate.kernel.hash, Verdict(winner.measurement, 12))
    memory.runs.set_state(run.id, RunState.FINISHED, result)


def make_named_run(run_id: str, root: Path, name: str) -> Run:
    """A run whose id says when it began."""
    day, hour = run_id.split("-")[:2]
    when = f"{day[:4]}-{day[4:6]}-{day[6:]}T{hour[:2]}:{hour[2:4]}:00+00:00"
    path = f"/home/ada/problems/{name}.py"
    problem = Problem(name, path, PROBLEM.format(name=name, width=2048))
    return replace(make_run(run_id, root, name), problem=problem, created_at=when)


def keep_parts(run: Run) -> None:
    """Keep where the time of a run's module goes."""
    parts = sorted((TimePart(*part) for part in PARTS), key=lambda part: -part.eager_ms)
    rest = TimePart("", "6 smaller parts", 38, 0.11, 0.03)
    whole = Breakdown(run.target, sum(part.calls for part in parts) + 38, tuple(parts), rest, 2.1)
    RunDirectory(Path(run.out_dir)).write_text(BREAKDOWN, to_json(whole))


def keep_pieces(root: Path, memory: Memory) -> None:
    """Keep a run on a whole model that is at work, and the run on its first piece."""
    directory = root / "vit"
    run = make_named_run(PIECE, root, "attention")
    run = replace(run, out_dir=str(directory / "runs" / "attention"))
    end_run(memory, run, keep_run(memory, run, 2.0, 9), 2.0)
    pieces = [
        replace(piece, run=run.id if piece.name == "attention" else piece.run) for piece in PIECES
    ]
    settings = ModelSettings("problems/models/vit.py", (), "eval", 30.0, RunSettings())
    left = (("head.router", "its sizes depend on values"),)
    state = ModelState(settings, "vit", "h200", False, 8.9, tuple(pieces), left, 812.0)
    directory.mkdir()
    write_state(RunDirectory(directory), state)


def fill_memory(path: Path, root: Path) -> Run:
    """Nine runs, one of them at work (it is returned), and a skill with outcomes."""
    names = ("layer_norm", "matmul_odd", "cumsum", "gelu_chain", "softmax")
    with Memory(path) as memory:
        for number, name in enumerate(names):
            run = make_named_run(f"20260120-0{number}1200-{number}b7c", root, name)
            scale = 1.0 + 0.4 * number
            made = keep_run(memory, run, scale, 6)
            if number != 2:
                end_run(memory, run, made, scale)
        model = make_named_run(MODEL, root, "decoder")
        keep_parts(model)
        end_run(memory, model, keep_run(memory, model, 14.0, 9), 14.0)
        keep_pieces(root, memory)
        earlier = make_named_run(EARLIER, root, "softmax")
        end_run(memory, earlier, keep_run(memory, earlier, 1.2, 9), 1.2)
        run = make_named_run(RUN, root, "softmax")
        end_run(memory, run, keep_run(memory, run, 1.0, len(TIMES)), 1.0)
        live = make_named_run(LIVE, root, "softmax")
        keep_run(memory, live, 0.98, 7)
        for seed in range(120):
            passed = 0.5 + seed % 7 / 10 if (seed * 7) % 11 > 2 else None
            memory.ledger.record(
                make_outcome(
                    passed,
                    problem="softmax",
                    seed=seed,
                    parent_ms=1.4,
                    bottleneck=Bottleneck.DRAM_BANDWIDTH,
                    created_at=f"2026-01-{seed // 10 + 1:02d}T12:00:00+00:00",
                )
            )
    return live

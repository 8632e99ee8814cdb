"""What a judge is told beside the problem: where it works, and how."""

from dataclasses import dataclass
from pathlib import Path

from kmem.interfaces import Checker
from kmem.records import UserTest


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Where and how a judge works, whatever the problem.

    All inputs and parameters follow from `seed`; workers never learn it. `gpu` says whether the
    device is here: without one only the small workload is run, in Triton's interpreter. `work_dir`
    is for workers' directories. `cache_dir` holds compiled kernels, shared with whatever compiles
    ahead (cache_dir/triton), and the lock files of the GPU.

    `bundle_dir` is where `Judge.verify` leaves a bundle, <kernel hash>.json, for each kernel that
    passes; None for none. `checkers` are source checks beside the judge's own; each must be
    available. `test` is the user's own, which a kernel must pass in the end as well. With
    `keep_spare` a further worker comes up whenever one is taken: a waste of device memory where
    only one kernel is judged.
    """

    seed: int
    gpu: bool
    work_dir: Path
    cache_dir: Path
    bundle_dir: Path | None = None
    checkers: tuple[Checker, ...] = ()
    test: UserTest | None = None
    keep_spare: bool = True
    load_timeout_s: float = 90.0
    run_timeout_s: float = 60.0

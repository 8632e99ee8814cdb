"""One kernel before the judge, outside a run.

In order: what is to be judged is read and checked (`make_case`), then judged (`judge_case`) against
baselines that memory may hold. `kmem verify`, `kmem measure` and the tools of `kmem mcp` of those
names print what this module finds.
"""

import ast
import logging
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kmem.errors import CaseError, MemoryStoreError, ProblemError
from kmem.host.syntax import parse_python
from kmem.interfaces import Checker
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.memory.location import default_db_path
from kmem.memory.store import Memory
from kmem.plugins import Registry, lookup
from kmem.problem.features.mode import in_mode
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.constructor import constructor_signature
from kmem.problem.source.load import check_forward, execute_problem, load_problem
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.records import (
    BASELINES,
    Baseline,
    Contract,
    Device,
    Kernel,
    Measurement,
    Problem,
    UserTest,
)
from kmem.run.directory import small_constants_beside
from kmem.run.evaluation.baselines import keep_baselines, known_baselines
from kmem.run.evaluation.compiling import KernelCompiler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a kernel is to be judged."""

    contract: Contract
    seed: int | None = None  # None: make_case draws one
    checkers: tuple[Checker, ...] = ()  # source checks beside the judge's own
    evidence_dir: Path | None = None  # where a bundle is left; None: nowhere
    mode: str | None = None  # train or eval; None: as the problem's file leaves the module
    test: UserTest | None = None  # the user's own, which the kernel must pass as well


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be judged, and how."""

    problem: Problem
    kernel: Kernel
    terms: Terms


# ---- what is to be judged


def read_kernel(path: Path) -> str:
    """The text of a kernel file. Raises CaseError: if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as ex:
        raise CaseError(
            f"Cannot read {path}: {ex}; give the path of a Python file with ModelNew"
        ) from ex


def read_small_constants(kernel: Path) -> str:
    """The constants of a kernel file for the small workload; empty if none lie beside it."""
    place = small_constants_beside(kernel)
    return read_kernel(place) if place.is_file() else ""


def make_case(
    problem: Path,
    source: str,
    terms: Terms,
    *,
    name: str = "The kernel",
    small_constants: str = "",
) -> Case:
    """A kernel's text and the problem it solves, ready to be judged.

    Args:
        terms: completed in the case: a seed is drawn, and evidence goes beside the database, where
            they say nothing else.
        name: of the kernel, for messages.
        small_constants: for the small workload, of a kernel that kmem wrote.

    Raises:
        ProblemError: if the problem breaks its contract.
        CaseError: if the text is no kernel for it.
    """
    loaded = in_mode(load_problem(problem), terms.mode)
    module = execute_problem(loaded)
    check_forward(module, terms.contract.precision)
    try:
        tree = parse_python(source, filename=name)
    except (SyntaxError, ValueError) as ex:
        where = f"line {ex.lineno}: {ex.msg}" if isinstance(ex, SyntaxError) else str(ex)
        raise CaseError(f"{name} is not valid Python, {where}; mend it and run again") from ex
    if "ModelNew" not in _module_names(tree):
        raise CaseError(f"{name} defines no ModelNew; name the class that replaces Model so")
    given = len(list(module.get_init_inputs())) if hasattr(module, "get_init_inputs") else 0
    _check_constructor(loaded, given, name, tree)
    seed = secrets.randbits(48) if terms.seed is None else terms.seed
    place = terms.evidence_dir or default_evidence_dir()
    kernel = Kernel(source, small_constants=small_constants)
    return Case(loaded, kernel, replace(terms, seed=seed, evidence_dir=place))


def _module_names(tree: ast.Module) -> set[str]:
    """Names that a module binds at its top level by a class, an assignment or an import."""
    found = set()
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):
            found.update(target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in statement.names)
    return found


def _check_constructor(problem: Problem, given: int, name: str, tree: ast.Module) -> None:
    """Check that ModelNew takes as many arguments (`given`) as the problem gives its Model.

    The problem, and with it what it imports, must have been executed: ModelNew may have its
    constructor from there.

    Raises CaseError: if it does not.
    """
    signature = constructor_signature(tree, "ModelNew")
    if signature is None:
        return  # only the worker can tell
    parameters = list(signature.parameters.values())
    required = [
        each.name
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    ]
    if required:
        raise CaseError(
            f"{name}: ModelNew wants {required[0]}= by name, {problem.path} gives its arguments by "
            f"place; take those of Model"
        )
    placed = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    least, most = sum(each.default is each.empty for each in placed), len(placed)
    if given < least or (
        given > most and not any(each.kind is each.VAR_POSITIONAL for each in parameters)
    ):
        wanted = str(least) if least == most else f"{least} to {most}"
        raise CaseError(
            f"{name}: ModelNew takes {wanted} constructor arguments, {problem.path} gives {given}; "
            f"take those of Model"
        )


def find_checkers(registry: Registry | None, names: Sequence[str]) -> tuple[Checker, ...]:
    """Registered checkers by name. Raises NotRegistered, and CaseError: if one cannot run here."""
    found = tuple(lookup(registry.checkers if registry else {}, name, "checker") for name in names)
    for checker in found:
        reason = checker.unavailable_reason()
        if reason is not None:
            raise CaseError(f"The checker {checker.name} cannot run here: {reason}")
    return found


# ---- judging


def judge_case(
    case: Case,
    device: Device,
    *,
    gpu: bool,
    announce: Callable[[str], None],
    baselines: Sequence[str] = BASELINES,
) -> tuple[Measurement, tuple[Baseline, ...]]:
    """The judge's verdict on a case, and what the kernel is compared with.

    Without a GPU that is an estimate for eager, made as the kernel's own is.

    Args:
        gpu: whether the device is here; otherwise the interpreter proves the kernel at small sizes
            and the time is an estimate for the device.
        announce: told in a line what is being done or left out.
        baselines: what a kernel is compared with on a GPU.

    Raises ProblemError: if the problem's forward fails, or without a GPU no small sizes can be
    found for it.
    """
    terms = case.terms
    traced = trace_at_full_size(case.problem, terms.contract, device)
    try:
        small = derive_small_workload(case.problem)
        traced = replace(traced, workloads={**traced.workloads, "small": small})
    except ProblemError as ex:
        if not gpu:
            raise
        announce(f"Other sizes are not checked: {ex}")
    with (
        tempfile.TemporaryDirectory(prefix="kmem-verify-", ignore_cleanup_errors=True) as place,
        KernelCompiler(traced, announce, cache_dir=_cache_dir() / "triton") as compiler,
        Judge(
            traced,
            JudgeSettings(
                seed=terms.seed,
                gpu=gpu,
                work_dir=Path(place),
                cache_dir=_cache_dir(),
                bundle_dir=terms.evidence_dir,
                checkers=terms.checkers,
                test=terms.test,
                keep_spare=False,
            ),
            estimate_ms=compiler.estimate_ms,
            compile_at=compiler.compile_at,
            on_event=announce,
        ) as judge,
    ):
        if gpu:
            found = find_baselines(judge, traced, baselines)
            return judge.verify(case.kernel, found), found
        measurement = judge.verify(case.kernel, ())
    return compiler.complete(measurement), compiler.baselines


def find_baselines(
    judge: Judge, traced: TracedProblem, names: Sequence[str]
) -> tuple[Baseline, ...]:
    """How fast the module itself is: as memory knows it, else measured now and kept there."""
    try:
        with Memory() as memory:
            found = tuple(each for each in known_baselines(memory, traced) if each.name in names)
            known = {baseline.name for baseline in found}
            missing = tuple(name for name in names if name not in known)
            if missing:
                timed = judge.baselines(missing)
                keep_baselines(memory, traced, timed)
                found += timed
            return found
    except MemoryStoreError as ex:  # a verdict needs no database
        logger.warning("baselines are not kept: %s", ex)
        return judge.baselines(names)


def default_evidence_dir() -> Path:
    """Where verdicts leave their evidence unless told otherwise: beside the database."""
    return default_db_path().parent / "evidence"


def _cache_dir() -> Path:
    """Compiled kernels, shared with `kmem optimize`."""
    return default_db_path().parent / "cache"

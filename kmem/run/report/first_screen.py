"""The first screen of a report: the verdict, how the kernel is used, and what to do next."""

from collections.abc import Iterator

from kmem.explore.models.knobs import current_settings
from kmem.interfaces import GIVEN
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.records import RunResult, SiteChoice, fastest_baseline
from kmem.run.report.finished import FinishedRun, why_not_tried
from kmem.run.report.starting import describe_start

#: What the judge's and the authors' flags on a kernel mean to who uses it.
FLAGS = {
    "specialised": "its kernels run for the sizes, types and layouts named in its guards; anything "
    "else goes to the module's own operators, which is right and no faster",
    "abridged": "the judge's time did not suffice for every artificial family of inputs or every "
    "other size; all that it did compare agreed",
    "constants_unproved": "without a GPU some constants that only the full size brings were "
    "compiled and not run; `kmem verify` on a GPU runs them",
    "beyond_kernelbench": "some elements differ from eager by more than KernelBench's own "
    "tolerance, though the kernel is as accurate as this contract asks",
    "degenerate": "trivial outputs would pass on some inputs, so that the comparison says little "
    "there",
    "algebraic": "it leaves out work that exact algebra shows to be needless, such as the zeros of "
    "a triangular matrix, or a product whose results are added up",
    "recalled": "it comes from memory: an earlier run found it, so its speedup is no new gain",
}
#: Of a run whose times are estimates: what the memory makes of them.
NOT_REMEMBERED = (
    "Estimates are no evidence: `kmem runs` lists the run, and memory has learned nothing from it."
)
#: Offered skills that are named in what to try next.
_NAMED_AT_MOST = 3


def summarise(result: RunResult) -> str:
    """The outcome in one sentence, estimates named as such."""
    label = "estimated " if result.estimated else ""
    if result.best is None:
        fastest = fastest_baseline(result.baselines)
        name, time = (
            (fastest.name, f" at {label}{fastest.timing.latency_ms:.4g} ms")
            if fastest
            else ("the module as it is", "")
        )
        return (
            f"No kernel beat the best baseline on {result.target}: the answer is {name}{time} "
            f"({result.reason})."
        )
    timing = result.best.measurement.timing
    text = f"{label}{timing.latency_ms:.4g} ms on {result.target}"
    if result.speedup is not None:
        against = timing.reference or "the estimate for eager"
        text += f", {result.speedup:.2f}x {against}"
        if timing.ratio_low is not None:
            text += f" (95% interval {timing.ratio_low:.2f}-{timing.ratio_high:.2f})"
    if result.speed_of_light is not None:
        text += f", {result.speed_of_light:.0%} of the speed of light"
    if result.recalled:
        text += ", recalled from memory: no new gain"
    return text[0].upper() + text[1:] + "."


def render_first_screen(finished: FinishedRun) -> list[str]:
    """The lines of Markdown down to what to try next."""
    run, result = finished.run, finished.result
    lines = [f"# {run.problem.name} on {result.target}", "", f"**{summarise(result)}**", ""]
    if started := describe_start(run, result, finished.attempts):
        lines += [started, ""]
    if result.estimated:
        lines += [
            "No GPU was used: correctness was proved in the Triton interpreter on small sizes, and "
            "every time is an estimate: of the compiled kernel, held to its recipes' cost models "
            f"and to what memory has measured of them. {NOT_REMEMBERED}",
            "",
        ]
    if result.best is not None:
        lines += _usage()
        lines += ["", "## What was fused", "", *_fused(finished)]
        lines += [f"- {flag}: {FLAGS.get(flag, 'not explained here')}" for flag in result.flags]
    lines += ["", "## What limits it now", "", *_limits(finished)]
    lines += ["", "## What to try next", "", *_next_steps(finished)]
    return lines


def _usage() -> list[str]:
    return [
        "```python",
        "from best_kernel import ModelNew  # best_kernel.py lies beside this report",
        "fast = ModelNew(*init_inputs).to(device)  # the arguments of Model",
        "fast.load_state_dict(model.state_dict())  # and its parameters; call it as Model",
        "```",
    ]


def _fused(finished: FinishedRun) -> list[str]:
    choices = finished.result.best.candidate.kernel.choices
    if not choices:
        task = finished.result.best.candidate.task
        if finished.result.best.candidate.author == GIVEN:
            return [f"- {_given_as(finished)}"]
        return [f"- the whole module, written by a language model ({task.skill})"]
    lines = []
    known, covered = finished.executable, set()
    is_rewritten = False
    for choice in choices:
        if known is not None and choice in known.rewritings:
            lines.append(f"- rewritten by {choice.recipe}: {known.rewritings[choice]}")
            is_rewritten = True
            continue
        nodes = choice.members or ()
        if not nodes and known is not None:
            nodes = known.nodes.get((choice.recipe, choice.site), ())
        covered.update(nodes)
        what = f": {', '.join(nodes)} as one" if len(nodes) > 1 else ""
        lines.append(
            f"- `{choice.site}` ({choice.operator}) by {choice.recipe}{what}; "
            f"{describe_knobs(choice)}"
        )
    # of a rewritten graph the nodes have other names
    if known is None or known.computing is None or is_rewritten or not covered:
        return [*lines, "- all else stays with the library's operators"]
    left = [name for name in known.computing if name not in covered]
    if not left:
        return [*lines, "- nothing is left to the library's operators"]
    return [*lines, f"- left to the library's operators: {', '.join(left)}"]


def _given_as(finished: FinishedRun) -> str:
    """In how far the winner is the kernel that the user gave."""
    start, best = finished.run.start, finished.result.best
    if start is not None and best.candidate.kernel.hash == start.hash:
        return "nothing: it is the kernel that you gave, as it stands"
    settings = current_settings(best.candidate.kernel.source, best.candidate.kernel.knob_space)
    told = " ".join(f"{name}={value}" for name, value in settings.items())
    return f"nothing: it is the kernel that you gave, at other numbers: {told}"


def describe_knobs(choice: SiteChoice) -> str:
    """The settings of one site."""
    return " ".join(f"{name}={value}" for name, value in choice.knobs) or "no knobs"


def _limits(finished: FinishedRun) -> list[str]:
    result = finished.result
    lines = []
    found = _last_diagnosis(finished)
    if found is not None:
        lines.append(f"- {found.diagnosis.summary}")
    bound = result.bound
    if bound is not None:
        best = result.best.measurement.latency_ms if result.best is not None else None
        left = f": {best / bound.time_ms:.1f}x is left" if best else ""
        lines.append(f"- the bound is {bound.time_ms:.4g} ms, set by {bound.limiter}{left}")
    lines.append(f"- the run stopped because {result.reason}")
    return lines


def _last_diagnosis(finished: FinishedRun) -> RoundDiagnosis | None:
    """Of the winner if it was diagnosed, else of the last kernel that was."""
    best = finished.result.best
    wanted = best.candidate.kernel.hash if best is not None else None
    of_winner = [entry for entry in finished.diagnoses if entry.kernel == wanted]
    last = of_winner or list(finished.diagnoses)
    return last[-1] if last else None


def _next_steps(finished: FinishedRun) -> list[str]:
    return [f"- {step}" for step in _steps(finished)] or ["- nothing that kmem knows of"]


def _steps(finished: FinishedRun) -> Iterator[str]:
    run, result = finished.run, finished.result
    problem = run.problem.path
    if result.estimated:
        yield f"on a machine with a GPU: `kmem optimize {problem}`, which measures"
    if "minutes" in result.reason:
        yield f"more time: `--minutes {2 * run.budget.minutes:g}`"
    elif "rounds are used up" in result.reason:
        yield f"more rounds: `--rounds {2 * run.budget.rounds}`"
    offered = _untried(finished)
    needing = [skill for skill in offered if "needs a language model" in offered[skill]]
    if needing:
        names = ", ".join(needing[:_NAMED_AT_MOST])
        more = f" and {len(needing) - _NAMED_AT_MOST} more" if len(needing) > _NAMED_AT_MOST else ""
        yield (
            f"a language model, `--author both -m MODEL`, for skills that no recipe writes: "
            f"{names}{more}"
        )
    if result.best is not None and "specialised" in result.flags:
        yield "another run for each size that you serve: this kernel is for the sizes of the file"


def _untried(finished: FinishedRun) -> dict[str, str]:
    """Skills that were offered and made no attempt, with the reason."""
    tried = {attempt.candidate.task.skill for attempt in finished.attempts}
    return {
        prescription.skill: why_not_tried(finished, prescription.skill)
        for entry in finished.diagnoses
        for prescription in entry.prescriptions
        if prescription.skill not in tried
    }

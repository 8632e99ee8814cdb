"""The arguments that several tools share: their schema, and how they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from kmem.devices import detect_device, named_target
from kmem.errors import CaseError
from kmem.records import Device
from kmem.run.evaluation.single import read_kernel
from kmem.vocabulary import OPERATORS

#: Profiles, estimates and remembered kernels are for this device where there is no GPU and none is
#: named.
DEFAULT_TARGET = "h200"

ProblemPath: TypeAlias = Annotated[
    str,
    Field(
        description="Path of the problem file: Model, get_inputs() and perhaps get_init_inputs()."
    ),
]
KernelPath: TypeAlias = Annotated[
    str | None, Field(description="Path of the kernel file, which defines ModelNew.")
]
KernelSource: TypeAlias = Annotated[
    str | None, Field(description="The kernel file's text, instead of a path.")
]
Target: TypeAlias = Annotated[
    str | None, Field(description="Device, such as h200; default: the GPU here, else h200.")
]
PrecisionName: TypeAlias = Annotated[
    Literal["match", "tf32", "bf16"],
    Field(description="Accuracy contract; match is as accurate as eager PyTorch."),
]
PurityName: TypeAlias = Annotated[
    Literal["library", "triton"],
    Field(description="Whether library calls may be part of the kernel; triton: they may not."),
]
Seed: TypeAlias = Annotated[
    int | None,
    Field(description="Seed of inputs and parameters, to repeat a verdict; default: drawn anew."),
]
Query: TypeAlias = Annotated[
    str,
    Field(
        description="What to look for, in words: a symptom, an operator, a technique.", min_length=1
    ),
]
SkillOperators: TypeAlias = Annotated[
    list[str] | None,
    Field(description="Only skills about one of these operators, such as max_pool."),
]
Arch: TypeAlias = Annotated[
    str | None, Field(description="Only skills for this architecture, such as sm_90.")
]
Limit: TypeAlias = Annotated[int, Field(description="How many skills at most.", ge=1, le=50)]
SkillName: TypeAlias = Annotated[
    str | None,
    Field(description="Name of a skill: its whole text, where it stands, and its track record."),
]
RunId: TypeAlias = Annotated[
    str | None,
    Field(description="Id of a run, or a unique prefix: why it did what it did, by round."),
]
RoundNumber: TypeAlias = Annotated[
    int | None, Field(description="Only this round of the run.", ge=0)
]
ProfilerName: TypeAlias = Annotated[
    str, Field(description="ncu, cupti, static, or auto: the first that works.")
]
ProblemIfAny: TypeAlias = Annotated[
    str | None, Field(description="Path of the problem file; needed unless a report is given.")
]
ReportPath: TypeAlias = Annotated[
    str | None,
    Field(description="Nsight Compute report (CSV or .ncu-rep) to read instead of profiling."),
]
KernelOperators: TypeAlias = Annotated[
    list[str] | None,
    Field(description="Operators the kernel computes: skills for them are offered."),
]
LatencyMs: TypeAlias = Annotated[
    float | None, Field(description="Time of one forward in ms, if it is known.", gt=0)
]
VerdictName: TypeAlias = Annotated[str, Field(description="The verdict, as measure named it.")]
FollowedSkill: TypeAlias = Annotated[
    str, Field(description="The skill the kernel followed, or 'unaided'.")
]
ParentVerdict: TypeAlias = Annotated[
    str | None,
    Field(description="The verdict on the kernel it was made from, if that was measured too."),
]
Json: TypeAlias = "dict[str, object]"


def resolve_device(target: str | None) -> tuple[Device, bool]:
    """The device asked for, and whether it is here.

    Without a name it is the GPU here, else DEFAULT_TARGET.
    """
    present = detect_device()
    if present is not None and (target is None or target.lower() == present.name):
        return present, True
    return named_target(target or DEFAULT_TARGET), False


def kernel_text(path: str | None, source: str | None, *, optional: bool = False) -> str | None:
    """The text of a kernel that is given by path or as text; None if it is optional and not given.

    Raises:
        CaseError: if it is given twice, is missing, or cannot be read.
    """
    if path is not None and source is not None:
        raise CaseError("Give the kernel once: kernel (a path) or kernel_source (its text)")
    if path is None and source is None and not optional:
        raise CaseError("Give the kernel: kernel (a path) or kernel_source (its text)")
    return read_kernel(Path(path)) if path is not None else source


def check_operators(operators: Sequence[str]) -> None:
    """Refuse names that are no operators.

    Raises:
        CaseError: naming the operators that there are.
    """
    for name in operators:
        if name not in OPERATORS:
            raise CaseError(f"'{name}' is not an operator; they are: {', '.join(OPERATORS)}")

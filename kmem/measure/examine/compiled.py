"""What is compiled for the target is what the interpreter has proved, where there is no GPU.

Pure functions of a compile report and of what the interpreter saw at the same sizes.

Covered: a kernel that does not compile, that launches other kernels than were interpreted, and
products in less than the declared precision. Not covered: a kernel that does something else on a
GPU without a launch, or a product, that differs.
"""

from collections.abc import Sequence

from kmem.measure.examine.examination import Examination, Refused
from kmem.profile.compile.report import CompileReport, CompileStatus, last_line
from kmem.records import Precision, Status

#: Operand types that no contract has a place for unless an input is of that type.
_EIGHT_BITS = ("f8",)


def check_compiled(examination: Examination, report: CompileReport, device: str) -> None:
    """Hold what was compiled at the interpreted sizes to what the interpreter saw.

    Args:
        device: the name of the target.

    Raises Refused.
    """
    check_status(report, device)
    compiled = [
        launch.name for launch in report.launches if "static__library" not in launch.metrics
    ]
    interpreted = list(examination.kernels_seen)
    if compiled != interpreted:
        raise Refused(
            Status.WRONG_CONTRACT,
            f"compiled for {device} it launches {_listed(compiled)}, in the interpreter "
            f"{_listed(interpreted)}: what was proved is not what runs",
        )
    check_products(examination, report)


def check_status(report: CompileReport, device: str) -> None:
    """A kernel compiles for its target. Raises Refused."""
    if report.status is CompileStatus.NEEDS_VALUES:
        raise Refused(
            Status.BUILD_FAILED,
            "cannot be judged without a GPU: its forward looks at values, so that nobody can tell "
            f"what it launches ({last_line(report)}); judge it on a GPU",
        )
    if report.status is not CompileStatus.OK:
        raise Refused(
            Status.BUILD_FAILED, f"it does not compile for {device}: {report.log.strip()[-1500:]}"
        )


def check_products(examination: Examination, report: CompileReport) -> None:
    """Products are as precise as the contract says. Raises Refused.

    Narrower operands are no fault of their own, for parts of a value may be multiplied apart: how
    accurate that is, the input families have shown.
    """
    reference = examination.loaded_reference
    narrowest = {str(value) for value in reference.dtypes}
    own = [launch for launch in report.launches if "static__library" not in launch.metrics]
    for launch, products in zip(own, report.products, strict=True):
        for product in products:
            operand, precision = product.split(" ")
            if operand.startswith(_EIGHT_BITS) and not any("float8" in each for each in narrowest):
                raise Refused(
                    Status.WRONG_VALUES,
                    f"{launch.name} multiplies in {operand}, which nothing of the problem is",
                )
            if (
                precision == "tf32"
                and examination.contract.precision is Precision.MATCH
                and not reference.module.convolves
            ):
                raise Refused(
                    Status.WRONG_VALUES,
                    f"{launch.name} multiplies float32 in TF32, which --precision match has no "
                    f'room for; write tl.dot(..., input_precision="ieee"), or judge it with '
                    f"--precision tf32",
                )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"

"""What is compiled for the target is what the interpreter has proved, where there is no GPU.

Pure functions of a compile report and of what the interpreter saw at the same sizes.

Covered: a kernel that does not compile, that launches other kernels than were interpreted, and
products in less than the declared precision. Not covered: a kernel that does something else on a
GPU without a launch, or a product, that differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.measure.examine.examination import Examination, Refused
from kmem.records import Precision, Status

#: Operand types that no contract has a place for unless an input is of that type.
_EIGHT_BITS = ("f8",)


@dataclass(frozen=True, slots=True)
class CompiledForward:
    """What one forward came to when it was compiled for the target.

    `failure` is why it does not compile, None if it does; `needs_values` says that its forward
    looks at values, so that nobody can tell. `kernels` are the Triton kernels that the first call
    launches, in order, `again` those of the next, and `products` the kinds of `tt.dot` in each of
    the first call's ("f32 tf32"). `launches` counts the libraries' of the next call too.
    """

    failure: str | None = None
    needs_values: bool = False
    kernels: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    products: tuple[tuple[str, ...], ...] = ()
    launches: int = 0


def check_compiled(
    examination: Examination, compiled: Sequence[CompiledForward], device: str
) -> None:
    """Hold what was compiled to what the interpreter saw.

    A kernel that steps aside at small sizes on a device, because the library may be more accurate
    there, was interpreted as it is at full size.

    Args:
        compiled: at the interpreted sizes first, then at full size if that is another.
        device: the name of the target.

    Raises Refused.
    """
    seen, again = examination.first_kernels, examination.kernels_seen
    if not seen and any(each.kernels for each in compiled):
        raise Refused(
            Status.WRONG_CONTRACT,
            "its kernels were not proved: at the interpreter's small sizes it launches none of "
            f"them, on {device} {_listed(compiled[-1].kernels)}; have it take any sizes, or judge "
            "it on a GPU",
        )
    if seen and not any((each.kernels, each.again) == (seen, again) for each in compiled):
        own = compiled[0]
        is_later = own.kernels == seen
        found, proved = (own.again, again) if is_later else (own.kernels, seen)
        raise Refused(
            Status.WRONG_CONTRACT,
            f"compiled for {device} it launches {_listed(found)}, in the interpreter "
            f"{_listed(proved)}{' at a later call' if is_later else ''}: what was proved is not "
            f"what runs",
        )
    if seen and not compiled[-1].launches:
        raise Refused(
            Status.WRONG_CONTRACT,
            f"at full size it launches nothing on {device}, at the small size it did",
        )


def check_status(compiled: CompiledForward, device: str) -> None:
    """A kernel compiles for its target. Raises Refused."""
    if compiled.failure is None:
        return
    if compiled.needs_values:
        raise Refused(
            Status.BUILD_FAILED,
            "cannot be judged without a GPU: its forward looks at values, so that nobody can tell "
            f"what it launches ({compiled.failure}); judge it on a GPU",
        )
    raise Refused(Status.BUILD_FAILED, f"it does not compile for {device}: {compiled.failure}")


def check_products(examination: Examination, compiled: CompiledForward) -> None:
    """Products are as precise as the contract says. Raises Refused.

    Narrower operands are no fault of their own, for parts of a value may be multiplied apart: how
    accurate that is, the input families have shown.
    """
    reference = examination.loaded_reference
    narrowest = {str(value) for value in reference.dtypes}
    for kernel, products in zip(compiled.kernels, compiled.products, strict=True):
        for product in products:
            operand, precision = product.split(" ")
            if operand.startswith(_EIGHT_BITS) and not any("float8" in each for each in narrowest):
                raise Refused(
                    Status.WRONG_VALUES,
                    f"{kernel} multiplies in {operand}, which nothing of the problem is",
                )
            if (
                operand == "f32"  # of narrower operands the word says nothing
                and precision == "tf32"
                and examination.contract.precision is Precision.MATCH
                and not reference.module.convolves
            ):
                raise Refused(
                    Status.WRONG_VALUES,
                    f"{kernel} multiplies float32 in TF32, which --precision match has no "
                    f'room for; write tl.dot(..., input_precision="ieee"), or judge it with '
                    f"--precision tf32",
                )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join([*names[:6], "..."] if len(names) > 6 else names)

"""What is compiled for the target is what the interpreter has proved, where there is no GPU.

Pure functions of a compile report and of what the interpreter saw at the same sizes.

Covered: a kernel that does not compile, that launches other kernels than were interpreted, by name
and by text, the same with other constants or arguments at the same sizes (the interpreter is given
these too, in a run of its own), and products in less than the declared precision. Constants that
only other sizes bring are named here (`specialisations`). Not covered: what a library's operators
do beside the kernels.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.host.kernel_identity import LaunchedKernel
from kmem.measure.examine.examination import Examination, Refused, SeenLaunch
from kmem.measure.examine.provenance import computing_operators
from kmem.records import Precision, Status

#: Operand types that no contract has a place for unless an input is of that type.
_EIGHT_BITS = ("f8",)
#: Operators of which a device has variants under other names.
_BY_DEVICE = re.compile(
    "scaled_dot_product|convolution|batch_norm|layer_norm|group_norm|rnn|lstm|gru|scalar|pool|conv"
)


@dataclass(frozen=True, slots=True)
class CompiledForward:
    """What one forward came to when it was compiled for the target.

    `failure` is why it does not compile, None if it does; `needs_values` says that its forward
    looks at values, so that nobody can tell. `kernels` are the Triton kernels that the first call
    launches, in order, `again` those of the next, and `products` the kinds of `tt.dot` in each of
    the first call's ("f32 tf32"); `described` and `described_again` are what their launches were.
    `operators` are those of torch in the next call, and `launches` counts theirs too.
    """

    failure: str | None = None
    needs_values: bool = False
    kernels: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    products: tuple[tuple[str, ...], ...] = ()
    described: tuple[LaunchedKernel, ...] = ()
    described_again: tuple[LaunchedKernel, ...] = ()
    operators: frozenset[str] = frozenset()
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


@dataclass(frozen=True, slots=True)
class ChangedArguments:
    """What the launches of a call are given on the target and were not in the interpreter.

    `kernels` are those that the call launches, in order; `arguments` what is changed, as text by
    name, by the number of the launch.
    """

    kernels: tuple[str, ...]
    arguments: Mapping[int, Mapping[str, str]]


def find_changed_arguments(
    examination: Examination, compiled: Sequence[CompiledForward], device: str
) -> list[ChangedArguments]:
    """The calls whose launches are given something else, the first call before later ones.

    At the same sizes: sizes decide some constants. An argument that is no constant may count calls;
    it is held to what it was if that was the same in every call.

    Raises Refused: if a kernel is not the one that was interpreted.
    """
    seen = examination.first_kernels, examination.kernels_seen
    same = next((each for each in compiled if (each.kernels, each.again) == seen), None)
    if same is None:
        return []
    calls = {same.kernels: same.described, same.again: same.described_again}
    found = []
    for kernels, launches in calls.items():
        changed = {
            index: arguments
            for index, launch in enumerate(launches)
            if (there := examination.described_seen.get((kernels, index))) is not None
            and (arguments := _find_changed(kernels[index], there, launch, device))
        }
        if changed and same is compiled[0]:
            found.append(ChangedArguments(kernels, changed))
    return found


def _find_changed(
    name: str, there: SeenLaunch, here: LaunchedKernel, device: str
) -> dict[str, str]:
    """The arguments of one launch that are others. Raises Refused: if its kernel is another."""
    if here.identity != there.identity:
        raise Refused(
            Status.WRONG_CONTRACT,
            f"{name} is another function when it is compiled for {device} than in the "
            f"interpreter: what was proved is not what runs",
        )
    return {
        argument: value
        for argument, value in here.arguments.items()
        if value not in (known := there.arguments.get(argument, {value}))
        and (argument in here.constants or len(known) == 1)
    }


def plain_arguments(changed: ChangedArguments, device: str) -> dict[str, dict[str, object]]:
    """Changed arguments as values, for the interpreter to take them too.

    Raises Refused: if one is a function or the like.
    """
    found: dict[str, dict[str, object]] = {}
    for index, arguments in changed.arguments.items():
        for name, text in arguments.items():
            try:
                found.setdefault(str(index), {})[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                raise Refused(
                    Status.WRONG_CONTRACT,
                    f"{changed.kernels[index]} is given another {name} on {device} than in the "
                    f"interpreter, at the same sizes: what was proved is not what runs",
                ) from None
    return found


def specialisations(compiled: CompiledForward) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """The kernels of a forward by what is compiled: each function, with its constants."""
    return {
        (launch.identity, frozenset((name, launch.arguments[name]) for name in launch.constants))
        for launch in (*compiled.described, *compiled.described_again)
    }


def check_operators(
    examination: Examination, compiled: Sequence[CompiledForward], device: str
) -> None:
    """What a library computed in the interpreter it computes on the target too.

    Args:
        compiled: as for `check_compiled`.

    Raises Refused.
    """
    seen = examination.first_kernels, examination.kernels_seen
    same = next((each for each in compiled if (each.kernels, each.again) == seen), compiled[0])
    there = {_packet(name) for name in same.operators}
    missing = sorted(
        name
        for name in map(_packet, computing_operators(examination.operators))
        if name.startswith("aten.") and name not in there and not _BY_DEVICE.search(name)
    )
    if missing:
        raise Refused(
            Status.WRONG_CONTRACT,
            f"in the interpreter {_listed(missing)} computes, on {device} it is not called: what "
            f"was proved is not what runs",
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
                and not reference.module.may_be_tf32
            ):
                raise Refused(
                    Status.WRONG_VALUES,
                    f"{kernel} multiplies float32 in TF32, which --precision match has no "
                    f'room for; write tl.dot(..., input_precision="ieee"), or judge it with '
                    f"--precision tf32",
                )


def _packet(operator: str) -> str:
    """An operator without its overload: "aten.mm" of "aten.mm.out"."""
    return ".".join(operator.split(".")[:2])


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join([*names[:6], "..."] if len(names) > 6 else names)

"""Launches of convolutions as Triton text: where results lie, the window, and the launcher; and
what those take that copy.
"""

from collections.abc import Sequence
from math import prod

from kmem.codegen.chains.ports import AFTER, port_arguments
from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.text.calls import write_allocation, write_launch_function
from kmem.records import Device

#: Of a copy, that kernels reach that scale, stage, normalise and finish.
SHARE_OF_BANDWIDTH = 0.9


def copy_ms(moved: int, device: Device) -> float:
    """Time in which so many bytes are moved."""
    return 1e3 * moved / (SHARE_OF_BANDWIDTH * device.dram_bytes_per_s)


def output_arguments(detail: Convolution) -> tuple[str, ...]:
    """Launch arguments of kmem_store_tile, in groups.

    Rows are a group's output channels, columns positions, batch axes images and groups.
    """
    rows, columns = detail.group_out, detail.positions
    stored, image = columns // prod(detail.window), detail.out.stride[0]
    if detail.finish is not None:
        stored = detail.finish.row_elements
        image = detail.channels_out * stored
    return (
        f"M={rows}, N={columns}, BATCH={detail.batches}, BATCH_INNER={detail.groups}",
        f"OUT_OUTER={image}, OUT_INNER={rows * stored}, OUT_M={stored}, OUT_N=1",
        *port_arguments(AFTER, detail.epilogue, detail.operand_steps),
    )


def window_arguments(detail: Convolution, sizes: Sequence[int]) -> str:
    """Launch arguments of the window, each for depth, height and width.

    These are sizes of what is read, outputs, kernel, stride and dilation.
    """
    named = {"": sizes}
    for name, attribute in (("O", "out"), ("K", "kernel"), ("S", "stride"), ("L", "dilation")):
        named[name] = [getattr(axis, attribute) for axis in detail.axes]
    return ", ".join(
        f"{name}{letter}={size}"
        for name, values in named.items()
        for letter, size in zip("DHW", values, strict=True)
    )


def write_launcher(detail: Convolution, launches: Sequence[str]) -> str:
    """`launch(x, w, e0, ...)`: allocate the result and run `launches`, statements that write what
    `Convolution.target` names.
    """
    parameters = ["x", "w", *(f"e{index}" for index in range(len(detail.operand_steps)))]
    made, last = [write_allocation("out", detail.out, "x")], []
    if detail.finish is not None:
        made.append(detail.finish.write_allocation("x"))
        last = [detail.finish.write_launch()]
    return write_launch_function(parameters, [*made, *launches, *last, "return out"])

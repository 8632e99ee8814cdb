"""Writes dense convolutions as vendor calls that eager does not make by itself.

They have channels_last layout, or algorithms chosen by measuring.

A labelled candidate: all its time is in cuDNN, so the result's share of vendor kernels says whose
work it is, and `--purity triton` does not see it.
"""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import indent

from kmem.codegen.convolutions.convolution import (
    Convolution,
    convolution_tensors,
    expects_exact_eager,
    operator_of,
    read_convolution,
)
from kmem.codegen.convolutions.windows import WindowAxis
from kmem.codegen.rates import ceiling
from kmem.codegen.text.calls import COLUMNS, write_call, write_launch_function
from kmem.problem.graph import Node, OpGraph
from kmem.recipes import ACCURACY, Emission, Operand, Recipe, Role, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device, Purity

#: Share of the tensor-core ceiling that cuDNN reaches with wide channels. Source: KernelBench level
#: 1, problems 55, 56, 62 on an H200 with torch 2.11, 2026-11-20: 150 to 197 TFLOP/s of a TF32
#: ceiling of 367.
SHARE_OF_CEILING = 0.5
WIDE_CHANNELS = 32
#: With few channels cuDNN computes fp32 without tensor cores, and torch's copies to another layout
#: read scattered lines. Source: the same on 2026-11-21, problems 50 and 54 (27 and 35 of 51
#: TFLOP/s) and 86 (7.1 ms where a product as it lies takes 0.8, 6.4 GB copied). A slower memory
#: limits the copies sooner.
SHARE_OF_FP32, COPIED_BYTES_PER_S = 0.6, 1.0e12
#: In depth, over 3 channels, fewer outputs than it has in a tile: 6.6 TFLOP/s for 16, 35 for 64.
#: Source: level 2's 27 and level 1's 54 on an H200, 2026-11-23.
WIDE_OUTPUTS = 64
_EAGERS = ("contiguous", "guessed")


class ChannelsLastConv(Recipe):
    operators = ("conv", "pointwise_conv")
    roles = {
        "layout": (Role("layout", (("contiguous",), ("channels_last",))),),
        "algorithm": (Role("search", (("guessed",), ("measured",))),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        if contract.purity is Purity.TRITON:
            return []
        sites = []
        for node in graph.nodes:
            detail = read_convolution(graph, node)
            if detail is not None and not detail.flipped and _is_symmetric(detail):
                is_exact = expects_exact_eager(detail, contract.precision)
                detail = replace(detail, is_eager_exact=is_exact)
                sites.append(_site(graph, node, detail))
        return sites

    def space(self, site: Site, device: Device) -> Space:
        # The layout as it lies with cuDNN's own guess is what eager does: no candidate.
        detail: Convolution = site.detail
        rounds = detail.dtype == "float32" and not detail.is_eager_exact
        knobs = {
            "layout": ("channels_last", "contiguous"),
            "algorithm": ("measured", "guessed"),
            ACCURACY: (0, 1) if rounds else (0,),  # 1: exact fp32
        }
        return Space(knobs, lambda settings: (settings["layout"], settings["algorithm"]) != _EAGERS)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Convolution = site.detail
        unit = {"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"}[detail.dtype]
        if _is_exact(detail, settings):
            unit = "fp32"
        filled = min(1.0, detail.group_in / WIDE_CHANNELS)
        rate = ceiling(device, unit) * SHARE_OF_CEILING * filled
        if detail.dtype == "float32":
            filled = min(1.0, detail.group_out / WIDE_OUTPUTS) if detail.is_eager_exact else 1.0
            exact = ceiling(device, "fp32") * SHARE_OF_FP32 * filled
            rate = exact if detail.is_eager_exact else max(rate, exact)
        moved_ms = site.bytes / device.dram_bytes_per_s * 1e3
        # input and output change their layout before and after, read and written
        if settings["layout"] == "channels_last":
            copied_bytes_per_s = min(COPIED_BYTES_PER_S, device.dram_bytes_per_s)
            moved_ms = 2.0 * site.bytes / copied_bytes_per_s * 1e3
        return site.flops / rate * 1e3 + moved_ms + 4 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Convolution = site.detail
        is_row = len(detail.out.shape) == 3
        statements = ["x, w = x.unsqueeze(2), w.unsqueeze(2)"] if is_row else []
        if settings["layout"] == "channels_last":
            layout = "channels_last" if len(_axes(detail)) == 2 else "channels_last_3d"
            statements += [
                "x, w = (",
                f"    x.contiguous(memory_format=torch.{layout}),",
                f"    w.contiguous(memory_format=torch.{layout}),",
                ")",
            ]
        statements += [
            *_write_convolution(detail, settings),
            "if bias is not None:",
            f"    y = y.add_(bias.view(1, -1{', 1' * len(_axes(detail))}))",
            f"return y.{'squeeze(2).' if is_row else ''}contiguous()",
        ]
        launcher = write_launch_function(["x", "w", "bias=None"], statements)
        rounds = detail.dtype == "float32" and not _is_exact(detail, settings)
        return Emission((), launcher, own_size_only=rounds)


def _is_exact(detail: Convolution, settings: Settings) -> bool:
    """Whether fp32 is not rounded: above the first rung, and where eager is taken to be exact."""
    return detail.is_eager_exact or bool(settings.get(ACCURACY, 0))


def _axes(detail: Convolution) -> tuple[WindowAxis, ...]:
    """The axes that cuDNN is given; it has no 1D convolutions: a row is an image one high."""
    rank = len(detail.out.shape) - 2
    return detail.axes[3 - max(rank, 2) :]


def _write_convolution(detail: Convolution, settings: Settings) -> list[str]:
    """The statements that make `y`, on the CPU by torch's own convolution."""
    axes, is_measured = _axes(detail), settings["algorithm"] == "measured"
    takes_tf32 = (
        "False"
        if _is_exact(detail, settings)
        else 'torch.backends.cudnn.conv.fp32_precision == "tf32"'
    )
    padding, stride = [axis.padding for axis in axes], [axis.stride for axis in axes]
    dilation, nothing = [axis.dilation for axis in axes], [0] * len(axes)
    on_cpu = write_call(
        "y = torch.convolution",
        f"x, w, None, {stride}, {padding}, {dilation}, False, {nothing}, {detail.groups}",
        columns=COLUMNS - 4,
    )
    on_device = write_call(
        "y = torch.cudnn_convolution",
        f"x, w, {padding}, {stride}, {dilation}, {detail.groups}",
        f"{is_measured}",
        "torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()",
        f"{takes_tf32}",
        columns=COLUMNS - 4,
    )
    return ["if x.is_cpu:", indent(on_cpu, "    "), "else:", indent(on_device, "    ")]


def _is_symmetric(detail: Convolution) -> bool:
    """Whether both ends of every axis are padded alike ("same" with an even window is not)."""
    return all(
        axis.out
        == (axis.size + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1) // axis.stride + 1
        for axis in detail.axes
    )


def _site(graph: OpGraph, node: Node, detail: Convolution) -> Site:
    inputs = tuple(Operand(name, graph.spec(name)) for name in convolution_tensors(node).values())
    size = (
        detail.images * detail.channels_in * detail.inputs * DTYPE_BYTES[detail.dtype]
        + node.spec.bytes
    )
    return Site(
        node.name,
        operator_of(detail),
        (node.name,),
        inputs,
        (Operand(node.name, node.spec),),
        detail,
        size,
        detail.flops,
        ("library",),
    )


RECIPE = ChannelsLastConv()

"""Norms: statistics of a row, and the row scaled by them.

PReLU is among them, for its parameters lie as those of a batch norm. Formulas are those of the
torch documentation of each operator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kmem.problem.graph import Ref
from kmem.problem.operators.arithmetic import per_result, statistics_and_scale
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.expressions import inverse_root, mean_of, write_number
from kmem.problem.operators.row import (
    Call,
    Channelwise,
    Operator,
    Parameters,
    Reduced,
    Reduction,
    Traffic,
    parameters,
)
from kmem.records import TensorSpec

#: How a parameter lies along the axes of the space.
_Strides: TypeAlias = Callable[[TensorSpec], tuple[int, ...]]


def _rank(call: Call) -> int:
    return len(call.spec("x").shape)


def _last_dims(call: Call) -> Reduced:
    rank = _rank(call)
    return tuple(range(rank - len(call["normalized_shape"]), rank)), True


def _all_but_samples(call: Call) -> Reduced:
    return tuple(range(1, _rank(call))), True


def _positions(call: Call) -> Reduced:
    return tuple(range(2, _rank(call))), True


def _all_but_channels(call: Call) -> Reduced:
    return (0, *range(2, _rank(call))), True


def _affine(
    build: RegionBuilder, call: Call, text: str, reads: tuple[str, ...], strides: _Strides
) -> None:
    """The result is text * weight + bias, each optional."""
    for role in ("weight", "bias"):
        given = call.value(role)
        if given is not None:
            name = build.load(f"{call.out}_{role}", given, strides(call.spec(role)))
            text = f"({text}) * {name}" if role == "weight" else f"{text} + {name}"
            reads = (*reads, name)
    build.map(call.out, text, *reads)


def _root_inverse(build: RegionBuilder, call: Call, mean_square: str, read: str) -> str:
    """1 / sqrt(mean_square + eps), a value per row."""
    root = inverse_root(f"{mean_square} + {write_number(_eps(call))}")
    return build.map(f"{call.out}_scale", root, read)


def _eps(call: Call) -> float:
    """What was given; else, for an rms norm, the machine epsilon of fp32.

    fp32 is the type in which kernels compute.

    Source: torch.nn.functional.rms_norm and torch.finfo.
    """
    return 2.0**-23 if call["eps"] is None else call["eps"]


@dataclass(frozen=True, slots=True)
class _Centred:
    """A row less its mean over its deviation, and the variables that it was made from."""

    text: str
    source: str
    mean: str
    m2: str  # the sum of squared deviations
    scale: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The variables of the text."""
        return self.source, self.mean, self.scale


def _centre(build: RegionBuilder, call: Call) -> _Centred:
    source = build.read(call.value("x"))
    mean, m2 = build.reduce((f"{call.out}_mean", f"{call.out}_m2"), "moments", source)
    variance = mean_of(m2, build.columns)
    scale = _root_inverse(build, call, variance, m2)
    return _Centred(f"({source} - {mean}) * {scale}", source, mean, m2, scale)


def _lower_layer_norm(build: RegionBuilder, call: Call) -> None:
    row = _centre(build, call)
    _affine(build, call, row.text, row.reads, build.strides)


def _lower_by_channel(build: RegionBuilder, call: Call) -> None:
    row = _centre(build, call)
    _affine(build, call, row.text, row.reads, build.channel_strides)


def _lower_rms_norm(build: RegionBuilder, call: Call) -> None:
    """Source: torch.nn.functional.rms_norm."""
    source = build.read(call.value("x"))
    square = build.map(f"{call.out}_square", f"{source} * {source}", source)
    (total,) = build.reduce((f"{call.out}_sum",), "sum", square)
    mean = mean_of(total, build.columns)
    scale = _root_inverse(build, call, mean, total)
    _affine(build, call, f"{source} * {scale}", (source, scale), build.strides)


def _has_own_statistics(build: RegionBuilder, call: Call) -> bool:
    return bool(call["use_input_stats"]) and call["running_mean"] is None


# --- batch norm


def _lower_batch_norm(build: RegionBuilder, call: Call) -> None:
    row = _centre(build, call)
    _update_running(build, call, row.mean, row.m2)
    _affine(build, call, row.text, row.reads, build.channel_strides)


def _update_running(build: RegionBuilder, call: Call, mean: str, m2: str) -> None:
    """Running statistics move towards the batch's by `momentum`, the variance unbiased.

    Source: torch.nn.BatchNorm2d.
    """
    momentum = call["momentum"]
    unbiased = f"tl.div_rn({m2}, {write_number(max(build.columns - 1, 0))})"
    for place, role, fresh, read in (
        (3, "running_mean", mean, mean),
        (4, "running_var", unbiased, m2),
    ):
        buffer = call.value(role)
        if buffer is not None:
            strides = build.channel_strides(call.spec(role))
            old = build.load(f"{call.out}_running_{place}", buffer, strides)
            new = build.map(
                f"{old}_new",
                f"{write_number(1 - momentum)} * {old} + {write_number(momentum)} * {fresh}",
                old,
                read,
            )
            build.change(new, buffer, strides)


def _has_batch_statistics(build: RegionBuilder, call: Call) -> bool:
    """Whether a batch norm takes the batch's statistics, with a fixed momentum.

    Nothing else may read the running ones, for they change.
    """
    graph = call.graph
    buffers = [call.value(role) for role in ("running_mean", "running_var") if call.value(role)]
    is_alone = all(
        graph.users(name) == (call.node,) and name not in graph.outputs for name in buffers
    )
    return (
        call["training"] is True
        and isinstance(call["momentum"], float)
        and is_alone
        and build.columns > 1
    )


def _has_running_statistics(call: Call) -> bool:
    return all(isinstance(call[role], Ref) for role in ("running_mean", "running_var"))


def _lower_running(build: RegionBuilder, call: Call) -> None:
    """Source: torch.nn.BatchNorm2d in eval mode."""
    source = build.read(call.value("x"))
    roles = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
    loaded = {name: _load_by_channel(build, call, role, name) for role, name in roles.items()}
    root = inverse_root(f"{loaded['variance']} + {write_number(_eps(call))}")
    text = f"({source} - {loaded['mean']}) * {root}"
    text = f"({text}) * {loaded['weight']}" if loaded["weight"] else text
    text = f"{text} + {loaded['bias']}" if loaded["bias"] else text
    reads = (source, *(loaded[name] for name in ("mean", "variance", "weight", "bias")))
    build.map(call.out, text, *filter(None, reads))


def _load_by_channel(build: RegionBuilder, call: Call, role: str, name: str) -> str:
    """The variable of a parameter along dimension 1; "" if it is not given."""
    given = call.value(role)
    if given is None:
        return ""
    return build.load(f"{call.out}_{name}", given, build.channel_strides(call.spec(role)))


_BATCH_STATISTICS = Reduction(
    _all_but_channels, _lower_batch_norm, _has_batch_statistics, names_region=True
)
_RUNNING_STATISTICS = Channelwise(_lower_running, _has_running_statistics)


def _chosen_batch_norm(call: Call) -> Reduction | Channelwise:
    return _RUNNING_STATISTICS if call["training"] is False else _BATCH_STATISTICS


# --- PReLU


def _lower_prelu(build: RegionBuilder, call: Call) -> None:
    """Source: torch.nn.PReLU."""
    source = build.read(call.value("x"))
    slope = _load_by_channel(build, call, "slope", "slope")
    text = f"tl.where({source} > 0.0, {source}, {slope} * {source})"
    build.map(call.out, text, source, slope)


def _always(call: Call) -> bool:
    return True


def _norm(name: str, given: Parameters, lowering: object) -> Operator:
    return Operator(
        f"aten.{name}.default",
        name,
        statistics_and_scale,
        given,
        lowering,
        Traffic.TWICE,
        is_fresh=True,
    )


_STATISTICS = dict.fromkeys(("weight", "bias", "running_mean", "running_var"))
ROWS = (
    _norm(
        "layer_norm",
        parameters("x", "normalized_shape", weight=None, bias=None, eps=1e-5),
        Reduction(_last_dims, _lower_layer_norm, names_region=True),
    ),
    _norm(
        "group_norm",
        parameters("x", "num_groups", weight=None, bias=None, eps=1e-5),
        Reduction(_all_but_samples, _lower_by_channel, names_region=True, groups="num_groups"),
    ),
    _norm(
        "instance_norm",
        parameters("x", **_STATISTICS, use_input_stats=None, momentum=None, eps=1e-5),
        Reduction(_positions, _lower_by_channel, _has_own_statistics, names_region=True),
    ),
    _norm(
        "batch_norm",
        parameters("x", **_STATISTICS, training=None, momentum=None, eps=1e-5),
        _chosen_batch_norm,
    ),
    Operator(
        "aten.rms_norm.default",
        "rms_norm",
        statistics_and_scale,
        parameters("x", "normalized_shape", weight=None, eps=None),
        Reduction(_last_dims, _lower_rms_norm, names_region=True),
    ),
    Operator("aten.native_layer_norm", "layer_norm", statistics_and_scale),
    Operator(
        "aten.prelu.default",
        "pointwise",
        per_result,
        parameters("x", "slope"),
        Channelwise(_lower_prelu, _always),
    ),
)

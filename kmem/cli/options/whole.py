"""What the commands on whole models share: which inputs, what device, what contract."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.contract import ContractOptions, mode_option, target_option
from kmem.cli.options.records import nested, option


def is_no_file(model: str) -> bool:
    """Whether a model is named otherwise than by a problem file."""
    place = Path(model)
    if place.name == "config.json" or (place / "config.json").is_file():
        return True
    return ":" in model and not place.exists()


def input_option() -> tuple[str, ...]:
    """`--input`."""
    found: tuple[str, ...] = option(
        "--input",
        multiple=True,
        metavar="TENSOR",
        help="An input that the model does not bring along: 'f32[8, 3, 224, 224]', or by keyword "
        "and below a number 'input_ids=i64[1, 128]<32000'; may be repeated.",
    )
    return found


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of every look at a whole model."""

    inputs: tuple[str, ...] = input_option()
    target: str | None = target_option(
        "Device of the figures, such as h200; default: the GPU here, else h200."
    )
    contract: ContractOptions = nested(ContractOptions)
    mode: str | None = mode_option()


@dataclass(frozen=True, slots=True)
class PieceOptions:
    """What `kmem optimize` is told of a model that it makes fast piece by piece."""

    pieces: bool = option(
        "--pieces",
        is_flag=True,
        help="Make the model fast as one problem or, where that fails, cut it into pieces, make "
        "those fast that pay most, and put it together again; what is done for any model that is "
        "no problem file.",
    )
    inputs: tuple[str, ...] = input_option()
    piece_minutes: float = option(
        "--piece-minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=3.0,
        show_default=True,
        help="Most minutes for one piece; --minutes are those of all pieces, by default 30, of "
        "which the whole as one problem gets up to six tenths. Before them up to 4 go to the "
        "model's baselines, on a GPU.",
    )
    within: float | None = option(
        "--within",
        type=click.FloatRange(min=0, min_open=True),
        help="Minutes within which all of it ends, baselines and the last proof included; pieces "
        "get what those leave of --minutes.",
    )
    least_gain: float = option(
        "--least-gain",
        type=click.FloatRange(min=0, max=1),
        default=0.01,
        show_default=True,
        help="Share of the model's time that a piece must promise to save to be tried.",
    )
    backward: bool = option(
        "--backward",
        is_flag=True,
        help="For training: a forward and backward is what is proved and timed. Each piece is two "
        "problems, its forward, which saves what its backward reads, and its backward.",
    )
    gpus: int | None = option(
        "--gpus",
        type=click.IntRange(min=1),
        help="With --executor: pieces that are tried at once, each on a GPU of the cluster, or "
        "with --target on a core; default: as many as it has GPUs, or one.",
    )


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """The options of `kmem extract`."""

    model: ModelOptions = nested(ModelOptions)
    top: int | None = option(
        "--top",
        type=click.IntRange(min=1),
        help="How many pieces, those first that would save most; default: all.",
    )

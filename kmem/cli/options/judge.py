"""How `kmem verify` and `kmem measure` judge a kernel: JudgeOptions."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.contract import ContractOptions, mode_option, purity_option, user_test_option
from kmem.cli.options.records import option


@dataclass(frozen=True, slots=True)
class JudgeOptions(ContractOptions):
    """The options that `kmem verify` and `kmem measure` share."""

    purity: str = purity_option(
        "triton: at most 1% of GPU time outside the file's own kernels and no library operator "
        "that computes."
    )
    mode: str | None = mode_option()
    seed: int | None = option(
        "--seed",
        type=int,
        help="Seed of inputs and parameters, to repeat a verdict; default: drawn anew, so that no "
        "kernel can know it.",
    )
    checks: tuple[str, ...] = option(
        "--check",
        multiple=True,
        metavar="NAME",
        help="Ask a further source check as well, such as kernelguard.",
    )
    test: Path | None = user_test_option()
    evidence_dir: Path | None = option(
        "--evidence",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory for the evidence of a kernel that passes; default: evidence/ beside the "
        "database.",
    )

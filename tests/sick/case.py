"""A sick kernel as the text of a problem whose `ModelNew` launches it."""

from dataclasses import dataclass
from textwrap import dedent, indent

_TEXT = '''"""{name}."""

import torch
import triton
import triton.language as tl

{kernels}


class Model(torch.nn.Module):
{made}    def forward(self, {arguments}):
{reference}


class ModelNew(torch.nn.Module):
{made}    def forward(self, {arguments}):
{forward}


def get_inputs():
    return [{inputs}]
'''


@dataclass(frozen=True, slots=True)
class SickKernel:
    """One case: its name, "KIND of OPERATOR", its text, and the skills that mend what was made ill.

    `kind` is the sickness, `family` that of the operator: what is left out together when a change
    of the ranking is tried on the others.
    """

    name: str
    kind: str
    family: str
    right: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Body:
    """The parts of a problem's text: Triton functions, what they stand for, and how they run.

    `inputs` makes the inputs, `arguments` names them; `reference` and `forward` are statements, and
    so is `made`, which gives both modules their parameters.
    """

    kernels: str
    reference: str
    forward: str
    inputs: str = "torch.randn(ROWS, COLUMNS)"
    arguments: str = "x"
    made: str = ""


def make_case(
    kind: str,
    operator: str,
    family: str,
    right: tuple[str, ...],
    body: Body,
    **values: object,
) -> SickKernel:
    """A case; each WORD of `values` in the body stands for its value."""
    name = f"sick {kind} of {operator}"

    def filled(text: str) -> str:
        for word, value in sorted(values.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(word, str(value))
        return dedent(text).strip("\n")

    made = f"super().__init__()\n{filled(body.made)}"
    text = _TEXT.format(
        made=f"    def __init__(self):\n{indent(made, ' ' * 8)}\n\n" if body.made else "",
        name=name,
        kernels=filled(body.kernels),
        arguments=body.arguments,
        reference=indent(filled(body.reference), " " * 8),
        forward=indent(filled(body.forward), " " * 8),
        inputs=filled(body.inputs),
    )
    return SickKernel(name, kind, family, right, text)

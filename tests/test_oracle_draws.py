"""Modules that draw random numbers are held to float64, with the numbers that eager drew."""

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_correctness import reference_of

DROPOUT = "torch.softmax(F.dropout(args[0] @ args[0].T, 0.2), 1)"


def draw_is_dealt(forward: str, place: Path, imports: str = "math") -> bool:
    """Whether the oracle is another than eager, and near it."""
    reference = reference_of(forward, "torch.rand(48, 64) + 1", place, imports=imports)
    expected = reference.expect(reference.inputs.values, 3)
    assert reference.is_stochastic
    compared = expected.compare(expected.eager)
    assert compared.is_within
    return compared.eager[0].relative_error > 0


@pytest.mark.parametrize(
    "drawn",
    [
        "F.dropout(args[0], 0.3)",
        "F.dropout2d(args[0][None], 0.3)",
        "F.alpha_dropout(args[0], 0.3, training=True)",
        "args[0] * torch.rand(64)",
        "args[0] + torch.randn_like(args[0])",
        "args[0] * torch.bernoulli(args[0] / 3)",
        "args[0] * torch.empty(64).uniform_(1, 2)",
        "args[0] * torch.randint(1, 9, (64,))",
        "args[0][torch.randperm(48)]",
        "args[0][torch.multinomial(args[0][:, 0], 9)]",
        "F.gumbel_softmax(args[0])",
    ],
)
def test_the_oracle_is_dealt_what_eager_drew(drawn: str, tmp_path: Path) -> None:
    assert draw_is_dealt(f"torch.sin({drawn}).cumsum(-1)", tmp_path)


@pytest.mark.parametrize(
    ("forward", "imports"),
    [
        ("args[0] * (1 + 1e-3 * random.random())", "random"),
        ("F.rrelu(args[0] - 2, training=True) * 0.7", "math"),
        # other numbers in float64 than in float32
        ("args[0] * (torch.rand(64) if args[0].dtype == torch.float32 else 2)", "math"),
    ],
)
def test_where_draws_cannot_be_dealt_eager_is_the_answer(
    forward: str, imports: str, tmp_path: Path
) -> None:
    random.seed(0)  # two draws of Python's own numbers may be nearly the same
    assert not draw_is_dealt(forward, tmp_path, imports)


def test_an_honest_sum_passes_under_dropout_and_another_mask_does_not(tmp_path: Path) -> None:
    reference = reference_of(DROPOUT, "torch.rand(64, 512)", tmp_path)
    expected = reference.expect(reference.inputs.values, 3)
    (x,) = reference.inputs.values
    assert isinstance(x, torch.Tensor)
    product = sum(
        part @ other.T for part, other in zip(x.split(64, 1), x.split(64, 1), strict=True)
    )

    def answer(seed: int) -> tuple[torch.Tensor]:
        torch.manual_seed(seed)
        return (torch.softmax(F.dropout(product, 0.2), 1),)

    assert expected.compare(answer(3)).is_within
    assert not expected.compare(answer(4)).is_within

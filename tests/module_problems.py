"""Problems of one expression, and the bundled recipes that are tried on them."""

from pathlib import Path

from kmem.recipes import Recipe
from kmem.skills import load_recipe, load_skill

SKILLS = Path(__file__).parent.parent / "skills"


def recipe(name: str) -> Recipe:
    """The recipe of a bundled skill."""
    return load_recipe(load_skill(SKILLS / name))


def problem(expression: str, inputs: str, setup: str = "pass", parameters: str = "x") -> str:
    """A problem file whose forward returns an expression.

    Args:
        inputs: what get_inputs returns, comma-separated.
        setup: one statement of the constructor.
        parameters: of forward, comma-separated.
    """
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {setup}

    def forward(self, {parameters}):
        return {expression}

def get_inputs():
    return [{inputs}]
"""

"""The suite of a skill's moves: each changes the knobs of a recipe that writes its operators.

Covered: that a move leads somewhere, on the sites of the problems below at the sizes of a large
card. What it is good for only measurements say; that its claims can fail, kmem/skills/validate.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kmem.devices import named_target
from kmem.moves import leads_somewhere
from kmem.problem.features.naming import name_operators
from kmem.recipes import Recipe, Settings
from kmem.records import Contract, Problem
from kmem.skills import Skill, bundled_skills_root, load_recipes, load_skill, skill_directories
from kmem.testing.sources import trace_once
from kmem.vocabulary import OPERATORS

#: A layer, and its input: together every kind of knob.
EXAMPLES: tuple[tuple[str, str], ...] = (
    ("lambda x: torch.relu(x) * 2.0", "torch.rand(4096, 4096)"),
    ("lambda x: x.sum(1)", "torch.rand(16, 4194304)"),
    ("lambda x: x.sum(1)", "torch.rand(128, 4096, 4095)"),
    ("lambda x: torch.argmax(x, dim=1)", "torch.rand(64, 65536)"),
    ("nn.AdaptiveAvgPool2d(1)", "torch.rand(16, 64, 256, 256)"),
    ("nn.Softmax(1)", "torch.rand(4096, 4096)"),
    ("nn.Softmax(1)", "torch.rand(64, 393216)"),
    ("nn.LayerNorm((64, 256, 256))", "torch.rand(16, 64, 256, 256)"),
    ("nn.GroupNorm(8, 64)", "torch.rand(16, 64, 256, 256)"),
    ("nn.BatchNorm2d(64)", "torch.rand(16, 64, 256, 256)"),
    (
        "lambda x: x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5)",
        "torch.rand(112, 64, 512, 512)",
    ),
    ("lambda x: F.mse_loss(x, x * x)", "torch.rand(32768, 4096)"),
    ("lambda x: torch.cumsum(x, 1)", "torch.rand(4, 1048576)"),
    ("nn.MaxPool2d(3, 2)", "torch.rand(16, 64, 256, 256)"),
    ("nn.AvgPool2d(4)", "torch.rand(16, 64, 256, 256)"),
    ("nn.Linear(2048, 2048)", "torch.rand(2048, 2048)"),
    ("lambda x: x @ x", "torch.rand(2048, 2048, dtype=torch.bfloat16)"),
    ("lambda x: torch.tril(x) @ torch.tril(x)", "torch.rand(2048, 2048)"),
    ("lambda x: x @ x.T", "torch.rand(256, 131072)"),
    ("lambda x: x @ x[0]", "torch.rand(2048, 65536)"),
    ("lambda x: torch.diag(x[0]) @ x", "torch.rand(4096, 4096)"),
    ("nn.Conv2d(64, 64, 3, padding=1)", "torch.rand(64, 64, 128, 128)"),
    ("nn.Conv2d(64, 64, 3, padding=1, groups=64)", "torch.rand(64, 64, 128, 128)"),
    ("nn.ConvTranspose2d(64, 64, 3, stride=2)", "torch.rand(64, 64, 64, 64)"),
    ("nn.GRU(64, 128)", "torch.rand(16, 8, 64)"),
    ("nn.EmbeddingBag(100_000, 512)", "torch.randint(0, 100_000, (4096, 64))"),
    (
        "lambda x: F.scaled_dot_product_attention(x, x, x)",
        "torch.rand(8, 16, 1024, 64)",
    ),
    (
        "lambda x: F.scaled_dot_product_attention(x[..., :1, :], x, x)",
        "torch.rand(8, 16, 4096, 64)",
    ),
)
_SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}
    def forward(self, x):
        return self.layer(x)
def get_inputs():
    return [{given}]
"""
#: Settings of a site that a move is tried from.
_MOST_BASES = 48


@dataclass(frozen=True, slots=True)
class MovableSite:
    """A site of an example: who writes it, at which settings, and the operators around it."""

    recipe: Recipe
    operators: frozenset[str]
    settings: Sequence[Settings]

    @property
    def bases(self) -> Sequence[Settings]:
        """Settings spread over all that are legal."""
        return self.settings[:: max(1, len(self.settings) // _MOST_BASES)]


def check_moves(skill: Skill, recipes: Mapping[str, Recipe] | None = None) -> None:
    """Hold the moves of a skill to their contract.

    Args:
        recipes: whose knobs the moves may change; by default those that ship.

    Raises:
        AssertionError: naming the first move that changes nothing.
    """
    fault = moves_fault(skill, recipes)
    assert not fault, fault


def moves_fault(skill: Skill, recipes: Mapping[str, Recipe] | None = None) -> str:
    """Which move of a skill changes no knob, and the roles that could be changed; "" if none."""
    sites = shipped_sites() if recipes is None else movable_sites(recipes)
    fitting = [site for site in sites if _is_about(skill, site.operators)]
    for move in skill.moves:
        if not any(
            leads_somewhere(move, base, site.settings, site.recipe.roles)
            for site in fitting
            for base in site.bases
        ):
            known = sorted({name for site in fitting for name in _movable_roles(site)})
            return (
                f"kmem-moves '{move.change}' changes no knob of a recipe for "
                f"{', '.join(skill.operators)}; roles there are: {', '.join(known) or 'none'}"
            )
    return ""


def movable_sites(recipes: Mapping[str, Recipe]) -> list[MovableSite]:
    """Every site that these recipes find in the examples."""
    device, contract = named_target("h200"), Contract()
    found = []
    for layer, given in EXAMPLES:
        source = _SOURCE.format(layer=layer, given=given)
        graph = trace_once(Problem("inline", "<inline>", source))
        for recipe in recipes.values():
            for site in recipe.match(graph, contract):
                parts = [(site.operator, site.nodes)]
                named = name_operators(graph, parts, device, contract)
                settings = recipe.space(site, device).settings()
                found.append(MovableSite(recipe, frozenset(named), settings))
    return found


@cache
def shipped_sites() -> list[MovableSite]:
    """Those of the recipes that ship, found once in a process."""
    skills = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    return movable_sites(load_recipes(skills)[0])


def _is_about(skill: Skill, operators: frozenset[str]) -> bool:
    """Whether a skill names one of the operators, or their family."""
    families = {OPERATORS[name] for name in operators}
    return skill.covers_operators(sorted(operators)) or any(
        OPERATORS.get(name) in families for name in skill.operators
    )


def _movable_roles(site: MovableSite) -> set[str]:
    return {
        role.name
        for name, found in site.recipe.roles.items()
        for role in found
        if len({role.grade(setting[name]) for setting in site.settings if name in setting}) > 1
    }

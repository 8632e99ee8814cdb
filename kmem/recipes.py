"""The API against which a skill's recipe.py is written.

A recipe is deterministic code that turns a matched part of the graph into Triton. A recipe.py
defines `RECIPE`, an instance of a `Recipe` subclass. It never runs torch; it writes text. Shared
text-writing lives in kmem/codegen. The module assembled from emissions holds the whole forward:
what no site covers stays a library call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from kmem.errors import RecipeError
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Device, Knob, TensorSpec


@dataclass(frozen=True, slots=True)
class Operand:
    """A value of the graph that a site reads or makes, under its graph name."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Site:
    """A part of the graph one recipe can write: the nodes it replaces, what it reads and makes.

    `name` is the name of its anchor node, stable between workloads of one problem. `detail` belongs
    to the recipe (a frozen dataclass of its own). `flags` go into the result: "algebraic" if exact
    algebra removed work. `bytes` and `flops` are what this site needs at least, for cost models and
    for ranking sites.
    """

    name: str
    operator: str  # vocabulary.OPERATORS
    nodes: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    detail: object
    bytes: int
    flops: float = 0.0
    flags: tuple[str, ...] = ()


Settings = Mapping[str, Knob]


@dataclass(frozen=True, slots=True)
class Space:
    """Knobs and their legal values for one site, and which combinations are worth compiling.

    Values stand in a sensible order. `is_legal` is about resources and speed only; correctness must
    not depend on it: any setting from any site's space must be correct.
    """

    knobs: Mapping[str, tuple[Knob, ...]]
    is_legal: Callable[[Settings], bool] = field(default=lambda settings: True)

    def settings(self) -> list[dict[str, Knob]]:
        """Every legal combination."""
        names = list(self.knobs)
        combinations = (
            dict(zip(names, values, strict=True)) for values in product(*self.knobs.values())
        )
        return [combination for combination in combinations if self.is_legal(combination)]

    def neighbours(self, settings: Settings) -> list[dict[str, Knob]]:
        """Legal settings that differ in one knob by one place in its list of values."""
        found = []
        for name, values in self.knobs.items():
            place = values.index(settings[name]) if settings[name] in values else 0
            for near in (place - 1, place + 1):
                if 0 <= near < len(values):
                    candidate = {**settings, name: values[near]}
                    if self.is_legal(candidate):
                        found.append(candidate)
        return found


@dataclass(frozen=True, slots=True)
class Emission:
    """The Triton a recipe wrote for one site at one setting.

    `kernels`: (name, source) of each `@triton.jit` function (and any jitted helper before it);
    sizes should come in as `tl.constexpr` arguments of the launch, so that one text serves every
    workload. Two emissions may share a name only with the same text. `launcher`: source of a plain
    Python function named `launch` that takes the site's inputs in order (torch tensors), allocates,
    launches and returns the output (a tuple if there are several). Available names: torch, triton,
    tl, and the kernels. `own_size_only`: it rounds as eager's library does at the problem's own
    size, and that library may be exact at another (cuDNN: TF32 or exact fp32). On a device such an
    emission is used at the problem's own size alone.
    """

    kernels: tuple[tuple[str, str], ...]
    launcher: str
    own_size_only: bool = False


class Recipe(ABC):
    """An executable skill: finds its sites in a graph and writes Triton for them at any setting.

    Contract (kmem.testing.check_recipe holds it): `match` returns sites whose nodes are convex in
    the graph (nothing between them lies outside); every value a site makes that is used outside is
    in `outputs`; emitted text is a pure function of site and settings; a setting from the space of
    any site is correct for every site of that structure; unsupported sizes, strides or dtypes are
    not matched rather than wrong.
    """

    name: str = ""  # set by the loader: the skill's name
    operators: tuple[str, ...] = ()

    @abstractmethod
    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        """Sites that this recipe can write, in graph order.

        They may overlap with other recipes' sites but not with each other.
        """

    @abstractmethod
    def space(self, site: Site, device: Device) -> Space:
        """Knobs worth trying for a site on a device."""

    @abstractmethod
    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        """A rough time for one setting, for ranking before anything is compiled.

        It need not be exact, but must be monotone in what matters.
        """

    @abstractmethod
    def emit(self, site: Site, settings: Settings) -> Emission:
        """The Triton for a site at one setting."""

    def emit_like(self, site: Site, settings: Settings, like: Site) -> Emission:
        """The Triton for a site in the text that `emit` writes for the same site at other sizes.

        The judge checks a module at small sizes by other numbers in the same text. Where `emit`
        writes what suits the sizes, this writes what suits those of `like`, right for `site` too.
        """
        return self.emit(site, settings)


def check_settings(space: Space, settings: Settings) -> None:
    """Hold a setting to a space.

    Raises RecipeError: if a setting names an unknown knob, misses one, or uses a value outside the
        space.
    """
    if set(settings) != set(space.knobs):
        raise RecipeError(f"Knobs {sorted(settings)} do not match the space {sorted(space.knobs)}")
    for name, value in settings.items():
        if value not in space.knobs[name]:
            raise RecipeError(
                f"Knob {name}={value!r} is outside its legal values {space.knobs[name]}"
            )

"""The API against which a skill's recipe.py is written.

A recipe is deterministic code that turns a matched part of the graph into Triton. A recipe.py
defines `RECIPE`, an instance of a `Recipe` subclass. It never runs torch; it writes text. Shared
text-writing lives in kmem/codegen. The module assembled from emissions holds the whole forward:
what no site covers stays a library call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kmem.errors import RecipeError
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Device, Knob, SiteChoice, TensorSpec


@dataclass(frozen=True, slots=True)
class Operand:
    """A value of the graph that a site reads or makes, under its graph name.

    One that is `kept` follows from parameters alone: what a launcher makes of it and nothing else,
    as split weights, is made once and costs no call anything.
    """

    name: str
    spec: TensorSpec
    kept: bool = False


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
class Role:
    """What a knob changes, in a word that the moves of skills speak (vocabulary.KNOB_ROLES).

    `levels` grade the values of a knob of words, least first, those of one level together; numbers
    grade themselves.
    """

    name: str
    levels: tuple[tuple[Knob, ...], ...] = ()

    def grade(self, value: Knob) -> int | None:
        """How much of the role a value has; None if it has no grade."""
        if not self.levels:
            return value if isinstance(value, int) else None
        return next((place for place, level in enumerate(self.levels) if value in level), None)


#: The knob of a recipe's precision ladder: rungs 0, 1, 2 ..., each more accurate and dearer than
#: the one before. See `Recipe.more_accurate`.
ACCURACY = "ACCURACY"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values of some of a space's knobs go together, whatever the other knobs are.

    `goes` is asked with a value of each of `knobs`, in their order.
    """

    knobs: tuple[str, ...]
    goes: Callable[..., bool]


@dataclass(frozen=True, slots=True)
class Space:
    """Knobs and their legal values for one site, and which combinations are worth compiling.

    Values stand in a sensible order. A setting is legal if all `rules` and `is_legal` say so. They
    are about resources and speed only; correctness must not depend on them: any setting from any
    site's space must be correct. What a rule says need not be said again, and spares a space of
    many knobs most of its combinations: it is asked before the knobs behind it have values.

    The rungs of `ACCURACY` are climbed (`Recipe.more_accurate`), not searched: whoever ranks
    settings or moves between them stays on a rung.

    `unnamed`: what was done before a knob was offered, for knobs that remembered settings lack.
    """

    knobs: Mapping[str, tuple[Knob, ...]]
    is_legal: Callable[[Settings], bool] = field(default=lambda settings: True)
    unnamed: Settings = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    @property
    def rungs(self) -> tuple[int, ...]:
        """The precision ladder from its cheapest rung up; empty if there is none."""
        return tuple(rung for rung in self.knobs.get(ACCURACY, ()) if isinstance(rung, int))

    def settings(self, rung: int | None = None) -> list[dict[str, Knob]]:
        """Every legal combination on one rung of the precision ladder, by default the lowest."""
        knobs = dict(self.knobs)
        if self.rungs:
            knobs[ACCURACY] = (self.rungs[0] if rung is None else rung,)
        known: list[dict[str, Knob]] = [{}]
        waiting = list(self.rules)
        for name, values in knobs.items():
            known = [{**setting, name: value} for setting in known for value in values]
            due = [rule for rule in waiting if known and known[0].keys() >= {*rule.knobs}]
            waiting = [rule for rule in waiting if rule not in due]
            known = [setting for setting in known if _obeys(setting, due)]
        return [setting for setting in known if self.is_legal(setting)]

    def allows(self, settings: Settings) -> bool:
        """Whether a setting has the knobs of this space at legal values."""
        return (
            set(settings) == set(self.knobs)
            and all(settings[name] in values for name, values in self.knobs.items())
            and self._is_worth_compiling(settings)
        )

    def _is_worth_compiling(self, settings: Settings) -> bool:
        return _obeys(settings, self.rules) and self.is_legal(settings)

    def on_rung(self, settings: Settings, rung: int | None = None) -> dict[str, Knob]:
        """A setting put on a rung, by default the lowest; as it is in a space without a ladder."""
        if not self.rungs:
            return dict(settings)
        return {**settings, ACCURACY: self.rungs[0] if rung is None else rung}

    def like_rung(self, settings: Settings, known: Settings) -> Settings:
        """A setting on the rung of a known one, which had to be climbed to, if it is legal."""
        rung = known.get(ACCURACY)
        raised = self.on_rung(settings, rung if isinstance(rung, int) else None)
        return raised if self.allows(raised) else settings

    def completed(self, settings: Settings) -> dict[str, Knob]:
        """A remembered setting as one of this space.

        One that names no rung, as those written before a recipe had a ladder, is on the lowest; and
        a knob that it lacks is as `unnamed` says.
        """
        known = {**self.unnamed, **settings}
        return known if ACCURACY in known else self.on_rung(known)

    def neighbours(self, settings: Settings) -> list[dict[str, Knob]]:
        """Legal settings of the same rung that differ in one knob by one place in its values."""
        found = []
        for name, values in self.knobs.items():
            if name == ACCURACY:
                continue
            place = values.index(settings[name]) if settings[name] in values else 0
            for near in (place - 1, place + 1):
                if 0 <= near < len(values):
                    candidate = {**settings, name: values[near]}
                    if self._is_worth_compiling(candidate):
                        found.append(candidate)
        return found


def _obeys(settings: Settings, rules: Collection[Rule]) -> bool:
    return all(rule.goes(*map(settings.__getitem__, rule.knobs)) for rule in rules)


@dataclass(frozen=True, slots=True)
class Emission:
    """The Triton a recipe wrote for one site at one setting.

    `kernels`: (name, source) of each `@triton.jit` function (and any jitted helper before it);
    sizes should come in as `tl.constexpr` arguments of the launch, so that one text serves every
    workload. Two emissions may share a name only with the same text. `launcher`: source of a plain
    Python function named `launch` that takes the site's inputs in order (torch tensors), allocates,
    launches and returns the output (a tuple if there are several). Where it allocates an output by
    `torch.empty` or `torch.empty_strided`, with the shape and strides of its spec as numbers, a
    module may hand it a slice of something larger instead. Available names: torch, triton, tl, and
    the kernels. `own_size_only`: it rounds as eager's library does at the problem's own
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
    version: str = ""  # set by the loader: a hash of the skill's code
    operators: tuple[str, ...] = ()
    #: What each knob changes, so that moves of any skill can change it; every knob but `ACCURACY`,
    #: which is climbed, has at least one role.
    roles: Mapping[str, tuple[Role, ...]] = {}

    @abstractmethod
    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        """Sites that this recipe can write, in graph order.

        They may overlap with other recipes' sites but not with each other.
        """

    @abstractmethod
    def space(self, site: Site, device: Device) -> Space:
        """Knobs worth trying for a site on a device.

        Sites that differ in nothing but the names of their nodes and values have the same, and the
        same times: one is asked about for all of them.
        """

    @abstractmethod
    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        """A rough time for one setting, for ranking before anything is compiled.

        It need not be exact, but must be monotone in what matters.
        """

    @abstractmethod
    def emit(self, site: Site, settings: Settings) -> Emission:
        """The Triton for a site at one setting."""

    def more_accurate(
        self, site: Site, settings: Settings, device: Device
    ) -> dict[str, Knob] | None:
        """The same setting one rung up the precision ladder, for a kernel refused for its error.

        A rung is a value of the knob `ACCURACY`: 0 is the fastest that is normally within the
        accuracy contract, and each above it is expected to err less and costs more (shorter sums
        before they are added to the total, one more split term, compensated sums). What a rung does
        is the recipe's own; a recipe without the knob has no ladder.

        Returns: The setting on the next rung where there is a legal one. The other knobs are kept
            where they can be: else one of them changes, else several, and of those settings it is
            the cheapest by `cost_ms`. None at the top, or without a ladder.
        """
        space = self.space(site, device)
        known = space.completed(settings)
        rung = known.get(ACCURACY, -1)
        for above in (each for each in space.rungs if isinstance(rung, int) and each > rung):
            wanted = space.on_rung(known, above)
            if space.allows(wanted):
                return wanted
            legal = space.settings(above)
            if legal:
                return min(legal, key=partial(self._change, site, wanted, device))
        return None

    def _change(
        self, site: Site, wanted: Settings, device: Device, settings: Settings
    ) -> tuple[bool, float]:
        """Whether several knobs differ from what is wanted, then the rough time of a setting."""
        changed = sum(wanted.get(name) != value for name, value in settings.items())
        return changed > 1, self.cost_ms(site, settings, device)

    def emit_like(self, site: Site, settings: Settings, like: Site) -> Emission:
        """The Triton for a site in the text that `emit` writes for the same site at other sizes.

        The judge checks a module at small sizes by other numbers in the same text. Where `emit`
        writes what suits the sizes, this writes what suits those of `like`, right for `site` too.
        """
        return self.emit(site, settings)


def match_sites(
    recipe: Recipe, graph: OpGraph, contract: Contract, members: Collection[str] | None = None
) -> Sequence[Site]:
    """The sites of a recipe in a graph; with members, those it finds where it sees no other node.

    So any recipe can be asked for less than it would take.
    """
    if members is None:
        return graph.once(_match, recipe, contract)
    return recipe.match(graph.hiding({node.name for node in graph.nodes} - {*members}), contract)


def _match(graph: OpGraph, recipe: Recipe, contract: Contract) -> Sequence[Site]:
    return tuple(recipe.match(graph, contract))


def find_site(
    recipe: Recipe, graph: OpGraph, contract: Contract, choice: SiteChoice
) -> Site | None:
    """The site that a choice was made for; None if the recipe does not find it in this graph."""
    sites = match_sites(recipe, graph, contract, choice.members)
    return next((site for site in sites if site.name == choice.site), None)


def rung_of(choice: SiteChoice) -> int | None:
    """Where on its recipe's precision ladder a site stands; None without a ladder."""
    rung = dict(choice.knobs).get(ACCURACY)
    return rung if isinstance(rung, int) else None


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

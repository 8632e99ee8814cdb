"""The suite of `kmem.recipes.Recipe`, run in Triton's interpreter.

Set TRITON_INTERPRET=1 before torch and triton are imported. Shapes should be small, for the
interpreter runs programs one by one.

Covered: every sentence of the contract, for one graph at the settings that are given. Not covered:
speed, and what only a compiler or a GPU refuses.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kmem.problem.graph import OpGraph
from kmem.recipes import ACCURACY, Recipe, Settings, Site, Space, check_settings
from kmem.records import Contract, Device, Knob, TensorSpec
from kmem.testing.scratch import poisoned_scratch
from kmem.testing.sources import emit_source, import_source, trace_source
from kmem.vocabulary import OPERATORS

if TYPE_CHECKING:
    import torch


def check_recipe(
    recipe: Recipe,
    source: str,
    device: Device,
    *,
    settings: Sequence[Settings] | None = None,
    contract: Contract | None = None,
    tolerance: float = 1e-5,
    expect_sites: int = 1,
) -> Mapping[str, float]:
    """Match, emit and run a recipe in the interpreter against the module itself.

    Args:
        source: a problem in the contract, with sizes small enough for the interpreter.
        settings: those to run, also outside the space; by default every legal one of the first
            site on its lowest rung, each of which must be legal for every other site too, and those
            above the first of them on the precision ladder.
        contract: what a candidate is held to; by default the strictest.
        tolerance: largest relative Frobenius error against the module in float64.
        expect_sites: how many sites the recipe must find.
    Returns: The largest error by setting.
    Raises:
        AssertionError: naming the setting, where the contract is broken.
    """
    contract = contract or Contract()
    module, graph = trace_source(source, contract.precision)
    assert graph.opaque_reason is None, graph.opaque_reason
    sites = list(recipe.match(graph, contract))
    assert len(sites) == expect_sites, (
        f"{len(sites)} sites, expected {expect_sites}: {[site.name for site in sites]}"
    )
    _check_sites(sites, graph)
    spaces = [recipe.space(site, device) for site in sites]
    climbed = [_climb(recipe, site, device) for site in sites]
    chosen = [*_settings_of_all(spaces), *chain(*climbed[:1])] if settings is None else settings
    trial = _Trial(module, graph, contract)
    errors = {}
    for setting in chosen:
        for site in sites:
            cost_ms = recipe.cost_ms(site, setting, device)
            assert math.isfinite(cost_ms) and cost_ms >= 0, (
                f"{setting}: cost_ms is a time, not {cost_ms}"
            )
        choices = [(recipe, site, setting) for site in sites]
        is_same = all(recipe.emit(site, setting) == recipe.emit(site, setting) for site in sites)
        assert is_same, f"{setting}: emission is not a pure function"
        text = emit_source(source, graph, choices)
        error = trial.run(text, f"{setting}")
        assert error <= tolerance, f"{setting}: relative error {error:.2e} above {tolerance:.0e}"
        errors[str(dict(setting))] = error
    return errors


def _check_sites(sites: Sequence[Site], graph: OpGraph) -> None:
    """Hold sites to what `Recipe.match` promises; that they are convex, assembling them shows."""
    order = {node.name: place for place, node in enumerate(graph.nodes)}
    taken: dict[str, str] = {}
    for site in sites:
        assert site.operator in OPERATORS, f"site {site.name}: no operator {site.operator!r}"
        for name in site.nodes:
            assert name in order, f"site {site.name} names {name}, which is no node of the graph"
            assert name not in taken, f"sites {taken[name]} and {site.name} both write {name}"
            taken[name] = site.name
        made = {operand.name for operand in site.outputs}
        used = {name for name in site.nodes if _is_used_outside(name, site, graph)}
        assert used <= made, (
            f"site {site.name}: {sorted(used - made)} are used outside and not among its outputs"
        )
    places = [min(order[name] for name in site.nodes) for site in sites]
    assert places == sorted(places), f"sites are not in graph order: {[s.name for s in sites]}"


def _is_used_outside(name: str, site: Site, graph: OpGraph) -> bool:
    if name in graph.outputs:
        return True
    return any(node.name not in site.nodes for node in graph.users(name))


def _settings_of_all(spaces: Sequence[Space]) -> list[dict[str, int | str]]:
    """Every legal setting of the first space; each must be legal in the others."""
    if not spaces:
        return []
    settings = spaces[0].settings()
    for setting in settings:
        for space in spaces:
            check_settings(space, setting)
    return settings


def _climb(recipe: Recipe, site: Site, device: Device) -> list[dict[str, Knob]]:
    """The settings above a site's first, held to what `Recipe.more_accurate` promises."""
    space = recipe.space(site, device)
    assert space.rungs == tuple(range(len(space.rungs))), (
        f"the rungs of {ACCURACY} are 0, 1, 2 ..., not {space.rungs}"
    )
    climbed: list[dict[str, Knob]] = []
    below = next(iter(space.settings()), None)
    while below is not None and (above := recipe.more_accurate(site, below, device)) is not None:
        assert space.allows(above), f"more_accurate() gives a legal setting, not {above}"
        places = [space.rungs.index(each[ACCURACY]) for each in (below, above)]
        assert places[0] < places[1], f"more_accurate() rises from {below} and gives {above}"
        if space.on_rung(above) == space.on_rung(below):
            costs = [recipe.cost_ms(site, each, device) for each in (below, above)]
            assert costs[0] <= costs[1], f"a rung costs more than the one below: {above}: {costs}"
        climbed.append(above)
        below = above
    top = max(space.rungs, default=None)
    assert below is None or below.get(ACCURACY) == top or not space.settings(top), (
        f"more_accurate() stops at {below}, below rung {top}"
    )
    return climbed


class _Trial:
    """A module with inputs and what it answers in float64; runs emitted text against them."""

    def __init__(self, module: ModuleType, graph: OpGraph, contract: Contract) -> None:
        import torch

        from kmem.measure.oracle.running.copies import copy_module
        from kmem.problem.source.load import build_inputs, build_model

        self._module = module
        self._graph = graph
        torch.manual_seed(0)
        self._model = build_model(module, "cpu", contract.precision)
        self._inputs = build_inputs(module, "cpu", contract.precision)
        self._state = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._expected = _forward(
            copy_module(self._model).double(), [_in_float64(value) for value in self._inputs]
        )

    def run(self, text: str, what: str) -> float:
        """The largest relative error of what the text answers. `what` is named in faults."""
        import torch

        emitted = import_source(text)
        candidate = self._build(emitted)
        kept = [_copied(value) for value in self._inputs]
        with poisoned_scratch(), warnings.catch_warnings(record=True) as fallbacks:
            outputs = _forward(candidate, self._inputs)
        said = [str(fallback.message) for fallback in fallbacks]
        assert not any("reference operators" in text for text in said), (
            f"{what}: the guard refuses the traced sizes"
        )
        for value, before in zip(self._inputs, kept, strict=True):
            assert not isinstance(value, torch.Tensor) or torch.equal(value, before), (
                f"{what}: an input was changed"
            )
        triples = zip(outputs, self._expected, self._graph.outputs, strict=True)
        return max(
            (self._error(output, expected, name, what) for output, expected, name in triples),
            default=0.0,
        )

    def _build(self, emitted: ModuleType) -> Any:
        """ModelNew with the parameters, dtype and mode of the module itself."""
        import torch

        arguments = self._module.get_init_inputs() if _has_arguments(self._module) else []
        floating = (value.dtype for value in self._state.values() if value.is_floating_point())
        candidate = emitted.ModelNew(*arguments).to(next(floating, torch.float32))
        candidate.load_state_dict(self._state)
        return candidate.train(self._model.training)

    def _error(
        self, output: "torch.Tensor", expected: "torch.Tensor", name: str, what: str
    ) -> float:
        import torch

        spec = _only_spec(self._graph, name)
        if spec is not None:
            assert (
                tuple(output.shape) == spec.shape and str(output.dtype) == f"torch.{spec.dtype}"
            ), f"{what}: {output.shape} {output.dtype}, expected {spec}"
        if not output.is_floating_point():
            assert torch.equal(output.double(), expected.double()), (
                f"{what}: integer output differs"
            )
            return 0.0
        difference = output.double() - expected
        if not bool(difference.isfinite().all()):
            return math.inf
        return float(difference.norm() / expected.norm().clamp_min(1e-300))


def _has_arguments(module: ModuleType) -> bool:
    return hasattr(module, "get_init_inputs")


def _only_spec(graph: OpGraph, name: str) -> TensorSpec | None:
    """The spec of an output; None if the node that makes the output makes several."""
    node = graph.node(name)
    if node is not None and isinstance(node.output, tuple):
        return None
    return graph.spec(name)


def _forward(model: Any, values: Sequence[object]) -> "Sequence[torch.Tensor]":
    """A module's outputs without gradients, as a sequence also if there is one."""
    import torch

    with torch.no_grad():
        result = model(*values)
    return result if isinstance(result, tuple | list) else (result,)


def _in_float64(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def _copied(value: Any) -> Any:
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else value

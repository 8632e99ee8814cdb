"""Fakes and conformance suites for plugin authors: `check_recipe` holds a recipe to the contract in
kmem/recipes.py on the CPU, `check_provider` a provider of language models to that of
kmem/interfaces.py.

Run recipes under TRITON_INTERPRET=1 (set it before torch and triton are imported); shapes should be
small, for the interpreter runs programs one by one.
"""

import atexit
import importlib.util
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kmem.codegen.module import SitePlan, WorkloadPlan, assemble_module
from kmem.errors import ProviderError
from kmem.host.parallel import in_parallel
from kmem.interfaces import Completion, Message, ModelRequest, Provider, StopReason
from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe, Settings, Site, check_settings
from kmem.records import Contract, Device, Precision, Problem


def trace_source(
    source: str, precision: Precision = Precision.MATCH
) -> tuple[types.ModuleType, OpGraph]:
    """Execute a problem given as text and trace it."""
    from kmem.problem.load import execute_problem
    from kmem.problem.trace import trace_problem

    module = execute_problem(Problem("inline", "<inline>", source))
    return module, trace_problem(module, precision)


@cache
def _own_directory() -> str:
    """A directory of this process, gone when it ends."""
    place = tempfile.mkdtemp(prefix="kmem-test-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def import_source(source: str, directory: str | Path | None = None) -> types.ModuleType:
    """Import module text from a real file, which triton.jit needs to read its functions back."""
    file = Path(directory or _own_directory()) / f"emitted_{abs(hash(source)):x}.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def emit_source(
    source: str, graph: OpGraph, choices: Sequence[tuple[Recipe, Site, Settings]]
) -> str:
    """The module text for one workload with these sites replaced."""
    plans = tuple(SitePlan(site, recipe.emit(site, settings)) for recipe, site, settings in choices)
    return assemble_module("conformance check", source, [WorkloadPlan("full", graph, plans)])


@contextmanager
def poisoned_scratch(integer: int = -(2**30)) -> Iterator[None]:
    """Memory that torch.empty, empty_like and empty_strided give meanwhile holds NaN or this
    integer, so that a kernel which reads what nobody has written gives a wrong result, not now and
    then but always.
    """
    import torch

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*sizes: object, **given: object) -> torch.Tensor:
            made = make(*sizes, **given)
            if made.device.type == "cpu" and (
                made.is_floating_point() or made.dtype in (torch.int32, torch.int64)
            ):
                made.fill_(float("nan") if made.is_floating_point() else integer)
            return made

        return call

    originals = {name: getattr(torch, name) for name in ("empty", "empty_like", "empty_strided")}
    try:
        for name, make in originals.items():
            setattr(torch, name, poisoned(make))
        yield
    finally:
        for name, make in originals.items():
            setattr(torch, name, make)


def check_recipe(
    recipe: Recipe,
    source: str,
    device: Device,
    *,
    settings: Sequence[Settings] | None = None,
    contract: Contract | None = None,
    tolerance: float = 1e-5,
    expect_sites: int = 1,
    inputs: Sequence[object] | None = None,
) -> Mapping[str, float]:
    """Match, emit and run a recipe in the interpreter against the module itself, at every given
    (default: every legal) setting.

    Args:
        source: a problem in the contract, with sizes small enough for the interpreter.
        tolerance: largest relative Frobenius error against the module in float64.
        expect_sites: how many sites the recipe must find.
    Returns: The error by setting. Raises AssertionError, naming the setting, where the contract is
        broken.
    """
    import torch

    from kmem.problem.load import build_inputs, build_model

    contract = contract or Contract()
    module, graph = trace_source(source, contract.precision)
    assert graph.opaque_reason is None, graph.opaque_reason
    sites = list(recipe.match(graph, contract))
    assert len(sites) == expect_sites, (
        f"{len(sites)} sites, expected {expect_sites}: {[site.name for site in sites]}"
    )
    torch.manual_seed(0)
    model = build_model(module, "cpu", contract.precision)
    values = list(inputs) if inputs is not None else build_inputs(module, "cpu", contract.precision)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    oracle = _run(
        _double(model),
        [
            value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for value in values
        ],
    )
    errors = {}
    space = recipe.space(sites[0], device) if sites else None
    for setting in settings if settings is not None else (space.settings() if space else []):
        for site in sites:
            if settings is None:
                check_settings(recipe.space(site, device), setting)
        text = emit_source(source, graph, [(recipe, site, setting) for site in sites])
        assert text == emit_source(source, graph, [(recipe, site, setting) for site in sites]), (
            f"{setting}: emission is not a pure function"
        )
        emitted = import_source(text)
        candidate = emitted.ModelNew(
            *(module.get_init_inputs() if hasattr(module, "get_init_inputs") else [])
        )
        candidate.to(
            next(
                (value.dtype for value in state.values() if value.is_floating_point()),
                torch.float32,
            )
        ).load_state_dict(state)
        candidate.train(model.training)
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        assert emitted._covers_full(candidate, *values), (
            f"{setting}: the guard refuses the traced sizes"
        )
        with torch.no_grad(), poisoned_scratch():
            outputs = candidate(*values)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for value, kept in zip(values, before, strict=True):
            assert not isinstance(value, torch.Tensor) or torch.equal(value, kept), (
                f"{setting}: an input was changed"
            )
        worst = 0.0
        for output, expected, spec_name in zip(outputs, oracle, graph.outputs, strict=True):
            spec = (
                graph.spec(spec_name)
                if graph.node(spec_name) is None
                or not isinstance(graph.node(spec_name).output, tuple)
                else None
            )
            if spec is not None:
                assert (
                    tuple(output.shape) == spec.shape and str(output.dtype) == f"torch.{spec.dtype}"
                ), f"{setting}: {output.shape} {output.dtype}, expected {spec}"
            if not output.is_floating_point():
                assert torch.equal(output.double(), expected.double()), (
                    f"{setting}: integer output differs"
                )
                continue
            difference = (output.double() - expected).norm() / expected.norm().clamp_min(1e-300)
            worst = max(
                worst,
                float(difference)
                if torch.isfinite(output.double() - expected).all()
                else float("inf"),
            )
        assert worst <= tolerance, f"{setting}: relative error {worst:.2e} above {tolerance:.0e}"
        errors[str(dict(setting))] = worst
    return errors


def check_provider(
    provider: Provider, model: str, base_url: str | None = None, *, unknown_model: str | None = None
) -> None:
    """Hold a provider to the contract of `kmem.interfaces.Provider` with a handful of short
    questions.

    Args:
        model: one that answers; it is asked seven questions of a few tokens.
        unknown_model: a name that the provider must refuse; None if it takes any.
    Raises:
        AssertionError: naming what the contract says and the provider does otherwise.
    """
    question = ModelRequest(
        model,
        (Message("system", "Answer in one word."), Message("user", "Yes?")),
        1024,
        base_url=base_url,
    )
    assert provider.name and provider.name == provider.name.strip(), "a provider has a name"
    assert "/" not in provider.name and "=" not in provider.name, (
        "the name must be usable in -m [ROLE=]PROVIDER/MODEL"
    )
    models = provider.models(base_url)
    assert all(isinstance(name, str) and name for name in models), (
        f"models() lists names, not {models!r}"
    )
    _check_completion(provider, provider.complete(question))
    for completion in in_parallel(provider.complete, [question] * 4, provider.interrupt):
        _check_completion(provider, completion)
    provider.interrupt()
    # calls after an interrupt are not affected
    _check_completion(provider, provider.complete(question))
    if unknown_model is not None:
        try:
            provider.complete(
                ModelRequest(
                    unknown_model, question.messages, 1024, base_url=base_url, timeout_s=60.0
                )
            )
        except ProviderError as ex:
            assert str(ex) and "\n" not in str(ex), (
                f"an error is one line with its remedy, not {str(ex)!r}"
            )
        else:
            raise AssertionError(
                f"{unknown_model} must be refused with ProviderError, not answered by another model"
            )


def _check_completion(provider: Provider, completion: Completion) -> None:
    completion.text.encode()  # a lone surrogate can be put into no file, hash or request
    assert completion.stop is not StopReason.LOST, "an answer that is lost is raised as AnswerLost"
    counts = (completion.input_tokens, completion.output_tokens)
    assert all(count is None or (type(count) is int and count >= 0) for count in counts), (
        f"token counts are whole numbers, not {counts}"
    )
    assert (completion.input_tokens is None) == (completion.output_tokens is None), (
        f"both counts are known or neither is, not {counts}"
    )
    if provider.counts_tokens:
        assert counts[0], (
            f"counts_tokens promises the provider's own counts, and the question had some: {counts}"
        )


def _double(model):  # noqa: ANN001, ANN202 - a torch module in and out
    import copy

    return copy.deepcopy(model).double()


def _run(model, values):  # noqa: ANN001, ANN202
    import torch

    with torch.no_grad():
        result = model(*values)
    return result if isinstance(result, tuple | list) else (result,)

"""What a run would make of a problem, as text for people."""

from kmem.problem.costs.footprint import in_units
from kmem.run.setup.preview import Preview


def describe_preview(preview: Preview) -> str:
    """A line for each thing to know, notes last."""
    lines = [
        ("problem", preview.problem),
        ("inputs", _shapes(preview.inputs)),
        ("operators", ", ".join(preview.operators)),
        ("mode", _mode(preview)),
        ("bound", _bound(preview)),
        ("memory", _memory(preview)),
        ("recipes", _recipes(preview)),
        ("library", _library(preview)),
        ("small sizes", _small(preview)),
    ]
    text = [f"{name:12} {value}" for name, value in lines]
    return "\n".join([*text, *(f"{'note':12} {note}" for note in preview.notes)])


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(" x ".join(map(str, shape)) or "a number" for shape in shapes) or "none known"


def _mode(preview: Preview) -> str:
    if preview.bound is None:
        return "as the file leaves it; whether it matters is unknown"
    mode = "training" if preview.training else "evaluation"
    return f"{mode}, which matters" if preview.mode_matters else "the same in training and eval"


def _bound(preview: Preview) -> str:
    bound = preview.bound
    if bound is None:
        return "unknown: the forward cannot be traced"
    return (
        f"{bound.time_ms:.4g} ms on {preview.device}, limited by {bound.limiter} "
        f"({in_units(bound.bytes)} moved)"
    )


def _memory(preview: Preview) -> str:
    return "unknown" if preview.bound is None else f"at least {in_units(preview.least_bytes)}"


def _library(preview: Preview) -> str:
    if preview.bound is None:
        return "the whole forward"
    return ", ".join(preview.library) or "nothing: recipes can write all of it"


def _recipes(preview: Preview) -> str:
    """Each recipe with its sites, so many as fit a line or two."""
    by_recipe: dict[str, list[str]] = {}
    for recipe, site, _ in preview.sites:
        by_recipe.setdefault(recipe, []).append(site)
    parts = [f"{name} ({', '.join(sites)})" for name, sites in by_recipe.items()]
    return "; ".join(parts) or "none: only a language model can write this (--author llm)"


def _small(preview: Preview) -> str:
    if not preview.small_inputs:
        return "none: without a GPU nothing can be proved"
    replaced = ", ".join(
        f"{name} -> {value}" for name, value in preview.replaced if name != str(value)
    )
    return _shapes(preview.small_inputs) + (f" ({replaced})" if replaced else " (as it is)")

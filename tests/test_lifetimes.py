"""Values of an emitted forward are let go of behind their last reader."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from kmem.codegen.module.lifetimes import release_early


@pytest.mark.parametrize(
    ("lines", "released"),
    [
        (["a = f(x)", "b = g(a)", "c = h(b)"], ["a = f(x)", "b = g(a)", "del a", "c = h(b)"]),
        # of two results one is read
        (
            ["a, b = f(x)", "c = g(b)", "h(c)"],
            ["a, b = f(x)", "del a", "c = g(b)", "del b", "h(c)"],
        ),
        # an attribute is no use of a value of that name
        (
            ["view = x.view([2])", "y = f(view)", "z = y.view([1])", "w = g(z)"],
            [
                "view = x.view([2])",
                "y = f(view)",
                "del view",
                "z = y.view([1])",
                "del y",
                "w = g(z)",
            ],
        ),
        # what is bound anew lives on
        (["a = f(x)", "a = a.copy_(x)", "b = g(a)"], ["a = f(x)", "a = a.copy_(x)", "b = g(a)"]),
        # what nobody reads goes at once, but for a result and for what was there before
        (["a = f(x)", "b = f(x)", "g(x)"], ["a = f(x)", "del a", "b = f(x)", "g(x)"]),
    ],
)
def test_a_name_is_deleted_behind_its_last_use(lines: list[str], released: list[str]) -> None:
    assert release_early(lines, kept=("b",) if "b = f(x)" in lines else ()) == released


def test_a_long_chain_holds_two_of_its_values(tmp_path: Path) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def step(value: torch.Tensor) -> torch.Tensor:
        nonlocal most
        made = value + 1
        alive.append(weakref.ref(made))
        gc.collect()
        most = max(most, sum(each() is not None for each in alive))
        return made

    names = ["x", *(f"v{number}" for number in range(9))]
    body = [f"{new} = step({old})" for old, new in zip(names, names[1:], strict=False)]
    lines = [*release_early(body, kept=["v8"]), "return v8"]
    scope: dict[str, Any] = {"step": step}
    exec("def forward(x):\n" + "".join(f"    {line}\n" for line in lines), scope)  # noqa: S102
    assert scope["forward"](torch.zeros(1)).item() == 9
    assert most == 2

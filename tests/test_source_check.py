"""Further source checks: the hook, asking for one by name, and the adapter to KernelGuard."""

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corpus import problems
from corpus.honest import HONEST, LIBRARY, SCALE_RELU

from kmem import hookimpl, hookspecs
from kmem.cli.by_hand.verify import verify
from kmem.default_plugins import checkers
from kmem.default_plugins.checkers import KernelGuardChecker
from kmem.interfaces import Checker
from kmem.plugins import Plugins, Registry, collect

CHEAT = """
import torch

_cache = {}


def custom_kernel(data):
    (x,) = data
    key = x.data_ptr()
    if key in _cache:
        return _cache[key]
    y = torch.relu(x)
    _cache[key] = y
    return y
"""


class NoPrinting(Checker):
    """A stranger's checker: refuses print, and cannot run where `available` is false."""

    name = "no-printing"

    def __init__(self, available: bool = True) -> None:
        self.available = available

    def unavailable_reason(self) -> str | None:
        return None if self.available else "its rules are missing; install no-printing-rules"

    def check(self, source: str) -> list[str]:
        return [
            f"line {node.lineno}: print"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Name) and node.id == "print"
        ]


class Plugin:
    @hookimpl
    def register_checkers(self, register: Callable[[Checker], None]) -> None:
        register(NoPrinting())


def registry(available: bool = True) -> Registry:
    found = Registry()
    found.add(NoPrinting(available), kind="checkers", plugin="test")
    return found


def run(place: Path, source: str, entries: Registry, *options: str) -> Result:
    (place / "p.py").write_text(problems.SCALE_RELU)
    (place / "k.py").write_text(source)
    return CliRunner().invoke(
        verify, [str(place / "p.py"), str(place / "k.py"), *options], obj=entries
    )


def test_plugins_register_checkers_beside_the_built_in_one() -> None:
    manager = Plugins()
    manager.add_hookspecs(hookspecs)
    manager.register(checkers)
    manager.register(Plugin())
    assert set(collect(manager).checkers) == {"kernelguard", "no-printing"}


def test_a_checker_that_is_asked_for_refuses_before_anything_runs(tmp_path: Path) -> None:
    result = run(tmp_path, LIBRARY + "\nprint('never run')\n", registry(), "--check", "no-printing")
    assert result.exit_code == 1
    assert result.stdout == "refused_source\nno-printing: line 13: print\n"


def test_a_checker_that_cannot_run_here_is_one_line_and_exit_2(tmp_path: Path) -> None:
    result = run(tmp_path, LIBRARY, registry(available=False), "--check", "no-printing")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: The checker no-printing cannot run here: its rules are missing; install "
        "no-printing-rules\n"
    )


def test_a_checker_nobody_registered_is_named_with_those_that_exist(tmp_path: Path) -> None:
    result = run(tmp_path, LIBRARY, registry(), "--check", "unknown")
    assert str(result.exception) == "No checker named 'unknown'. Registered: no-printing"


@pytest.mark.skipif(find_spec("kernelguard") is not None, reason="kernelguard is installed")
def test_kernelguard_is_listed_but_unavailable_where_it_is_not_installed() -> None:
    assert (
        KernelGuardChecker().unavailable_reason()
        == "kernelguard is not installed; pip install kernelguard"
    )


@pytest.mark.skipif(find_spec("kernelguard") is None, reason="kernelguard is not installed")
def test_kernelguard_refuses_a_pointer_cache_and_no_honest_candidate() -> None:
    checker = KernelGuardChecker()
    assert checker.unavailable_reason() is None
    assert any(reason.startswith("POINTER_REPLAY: ") for reason in checker.check(CHEAT))
    assert checker.check(SCALE_RELU) == []
    assert [name for name, _, source in HONEST if checker.check(source)] == []

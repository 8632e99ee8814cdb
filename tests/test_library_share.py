"""Which kernels are a file's own is told by the functions launched, not by their names."""

from dataclasses import dataclass
from types import FunctionType

from kmem.host.kernel_identity import find_own
from kmem.measure.examine.provenance import library_share


@dataclass(frozen=True)
class Jitted:
    """A kernel, as `@triton.jit` holds its function."""

    fn: FunctionType


def jitted(name: str, namespace: dict[str, object]) -> Jitted:
    """What `@triton.jit` makes of a function with these globals."""
    exec(f"def {name}(x): pass", namespace)
    function = namespace.pop(name)
    assert isinstance(function, FunctionType)
    return Jitted(fn=function)


def share(launched: dict[tuple[object, str], int], namespace: dict[str, object]) -> float:
    named = {name: value for name, value in namespace.items() if isinstance(value, Jitted)}
    ran = [(name, 1.0) for (_, name), count in launched.items() for _ in range(count)]
    return library_share(ran, find_own(launched, namespace, named)[1])


def test_a_kernel_is_the_files_own_wherever_it_is_held() -> None:
    file: dict[str, object] = {}
    held = jitted("work", file)
    assert share({(held, "work"): 2}, file) == 0.0  # in a dictionary, say
    file["imported"] = jitted("imported", {})
    assert share({(file["imported"], "imported"): 1}, file) == 0.0


def test_a_kernel_of_others_is_foreign_though_it_has_the_name_of_an_own_one() -> None:
    file: dict[str, object] = {}
    file["work"] = jitted("work", file)
    other = jitted("work", {})
    assert share({(file["work"], "work"): 1, (other, "work"): 1}, file) == 1.0
    assert share({(other, "work"): 3}, file) == 1.0
    assert share({(None, "work"): 1}, file) == 1.0

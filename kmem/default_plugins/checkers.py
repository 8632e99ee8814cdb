"""The built-in further source check: KernelGuard, if it is installed.

It is not a dependency of kmem.
"""

from collections.abc import Callable
from importlib.util import find_spec

from kmem.hookspecs import hookimpl
from kmem.interfaces import Checker


class KernelGuardChecker(Checker):
    """KernelGuard's rules, written from submissions that cheated in kernel competitions.

    MIT; https://pypi.org/project/kernelguard.
    """

    name = "kernelguard"

    def unavailable_reason(self) -> str | None:
        return (
            None
            if find_spec("kernelguard")
            else "kernelguard is not installed; pip install kernelguard"
        )

    def check(self, source: str) -> list[str]:
        """The patterns of a source that KernelGuard's default profile would filter out; those it
        only rates suspicious are let pass.
        """
        from kernelguard import analyze_code  # optional, and half a second

        found = analyze_code(source, compute_structural_hash=False)
        if not found["should_filter"]:
            return []
        return [
            f"{match['pattern']}: {match['evidence']}"
            for match in found["matched_patterns"]
            if match["severity"] in ("high", "critical")
        ] or [str(found["filter_reason"])]


@hookimpl
def register_checkers(register: Callable[[Checker], None]) -> None:
    register(KernelGuardChecker())

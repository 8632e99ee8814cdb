"""The built-in source check beside the judge's own: KernelGuard, if the user installed it."""

from collections.abc import Callable
from importlib.util import find_spec

from kmem import hookimpl
from kmem.interfaces import Checker


class KernelGuardChecker(Checker):
    """KernelGuard's rules, written from submissions that cheated in kernel competitions.

    MIT; https://pypi.org/project/kernelguard.
    """

    name = "kernelguard"

    def unavailable_reason(self) -> str | None:
        if find_spec("kernelguard"):
            return None
        return "kernelguard is not installed; pip install kernelguard"

    def check(self, source: str) -> list[str]:
        """The patterns for which KernelGuard's default profile filters a source out.

        Patterns that are only suspicious pass.
        """
        from kernelguard import analyze_code  # optional, and half a second

        found = analyze_code(source, compute_structural_hash=False)
        if not found["should_filter"]:
            return []
        matches = [
            f"{match['pattern']}: {match['evidence']}"
            for match in found["matched_patterns"]
            if match["severity"] in ("high", "critical")
        ]
        return matches or [str(found["filter_reason"])]


@hookimpl
def register_checkers(register: Callable[[Checker], None]) -> None:
    register(KernelGuardChecker())

"""The addresses of pages, for links from one to another."""

from urllib.parse import quote, urlencode


def run_address(run_id: str) -> str:
    """The page of a run."""
    return f"/runs/{quote(run_id, safe='')}"


def kernel_address(run_id: str, kernel: str) -> str:
    """The page of one candidate of a run."""
    return f"{run_address(run_id)}/kernels/{quote(kernel, safe='')}"


def model_address(run_id: str) -> str:
    """The page of the whole model that a run's problem is a piece of."""
    return f"{run_address(run_id)}/model"


def skill_address(name: str) -> str:
    """The page of a skill."""
    return f"/skills/{quote(name, safe='')}"


def problem_address(name: str) -> str:
    """The page of a problem over all its runs."""
    return f"/problems/{quote(name, safe='')}"


def landscape_address(name: str) -> str:
    """The page of a recorded landscape."""
    return f"/landscapes/{quote(name, safe='')}"


def compare_address(first: str, second: str = "") -> str:
    """Two runs side by side."""
    return f"/compare?{urlencode({'a': first, 'b': second})}"

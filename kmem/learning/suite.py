"""A suite: problems at chosen sizes, listed in one JSON file.

    {"problems": [{"name": "softmax_8k", "problem": "softmax",
                   "constants": {"ROWS": 8192, "COLUMNS": 8192}}, ...]}

`problem` is a path beside the file (or a directory with a problem.py there); `constants` are
module-level names of that file with the values to put in their place. A problem at other sizes is a
problem of its own, with its own source and hash: nothing else needs to know of suites.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.source.load import load_problem
from kmem.problem.source.reach import assigned_constants
from kmem.records import Problem

SUFFIX = ".json"


def load_suite(path: Path) -> tuple[Problem, ...]:
    """The problems of a suite file, in its order.

    Raises:
        ProblemError: naming the entry that does not fit.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["problems"]
    except OSError as ex:
        raise ProblemError(
            f"Cannot read the suite {path}: {ex.strerror}; give the path of a JSON file that "
            "lists problems"
        ) from ex
    except (ValueError, KeyError, TypeError) as ex:
        raise ProblemError(
            f'{path} is not a suite: it must be a JSON object with a list "problems" ({ex})'
        ) from ex
    problems: dict[str, Problem] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("problem"), str):
            raise ProblemError(
                f'{path}, entry {place}: it must be an object with "problem", and may have "name" '
                'and "constants"'
            )
        problem = load_problem(path.parent / entry["problem"])
        resized = resize_problem(
            problem, entry.get("name", problem.name), entry.get("constants", {})
        )
        if resized.name in problems:
            raise ProblemError(
                f"{path} names two problems {resized.name}; give one of them another name"
            )
        problems[resized.name] = resized
    if not problems:
        raise ProblemError(f"{path} lists no problems")
    return tuple(problems.values())


def resize_problem(
    problem: Problem, name: str, constants: Mapping[str, int | Sequence[int]]
) -> Problem:
    """The problem under another name, with other values for some of its module-level constants.

    Its text is otherwise the same.

    Raises:
        ProblemError: if the file assigns no such constant at top level.
    """
    tree = parse_python(problem.source)
    places = {
        constant: value
        for statement in tree.body
        for constant, value in assigned_constants(statement)
    }
    unknown = sorted(set(constants) - set(places))
    if unknown:
        raise ProblemError(
            f"{problem.path} has no constant {', '.join(unknown)}; it has "
            f"{', '.join(sorted(places)) or 'none'}"
        )
    lines = problem.source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = problem.source.encode()  # ast counts columns in bytes
    for constant in sorted(constants, key=lambda constant: -places[constant].lineno):
        value = places[constant]
        begin = starts[value.lineno - 1] + value.col_offset
        end = starts[value.end_lineno - 1] + value.end_col_offset
        written = constants[constant]
        text = (
            text[:begin]
            + repr(written if isinstance(written, int) else tuple(written)).encode()
            + text[end:]
        )
    return Problem(name, problem.path, text.decode())

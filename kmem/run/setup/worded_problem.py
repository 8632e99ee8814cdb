"""A problem file from a description in words, by a language model.

What a model writes is read as a candidate's source is before it is run here to be checked: a
problem file needs no files, no processes and no network either.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from kmem.errors import KmemError, ProblemError
from kmem.interfaces import Message, ModelRequest, Provider, StopReason
from kmem.measure.source_check import check_source
from kmem.records import ModelChoice

_BLOCK = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_TURNS = 2
_OUTPUT_TOKENS = 8_000
_SYSTEM = """\
You write a PyTorch problem file: one Python file that states exactly what is to be computed.
It imports torch (and torch.nn.functional as F) and nothing else, and defines:
- sizes as integer constants at the top of the file, which everything below uses;
- class Model(torch.nn.Module): the plain, readable PyTorch of the description, no kernels;
- def get_inputs() -> list: the positional arguments of forward, drawn anew by torch.randn (or
  torch.randint for indices) on the CPU, in the dtypes and sizes of the description;
- def get_init_inputs() -> list only if Model's constructor takes arguments.
Parameters have the dtype of the inputs. The constructor ends with self.eval() unless the
description is about training. Where the description leaves a choice, take the usual one and name it
in the docstring of the file.
Answer with the whole file in one ```python block."""


def ask_for_problem(
    description: str, provider: Provider, choice: ModelChoice, check: Callable[[str], None]
) -> str:
    """The text of a problem file as a model writes it; asked again once with what was wrong.

    Args:
        check: raises ProblemError for a text that is no problem file; it runs the text.

    Raises:
        ProblemError: if the second answer is no better.
        ProviderError: if the provider cannot answer.
    """
    messages = [Message("system", _SYSTEM), Message("user", description)]
    fault = ""
    for _ in range(_TURNS):
        completion = provider.complete(
            ModelRequest(
                model=choice.model,
                messages=tuple(messages),
                max_output_tokens=choice.max_output_tokens or _OUTPUT_TOKENS,
                temperature=choice.temperature,
                effort=choice.effort,
                base_url=choice.base_url,
                stream=choice.stream,
            )
        )
        if completion.stop is StopReason.END:
            try:
                return _checked(completion.text, check)
            except KmemError as ex:
                fault = str(ex)
        else:
            fault = f"the answer ended early ({completion.stop.value})"
        again = f"This cannot be used: {fault}. Give the whole file again, corrected."
        messages += [Message("assistant", completion.text or "(no text)"), Message("user", again)]
    raise ProblemError(
        f"{choice.model} wrote no problem file that holds: {fault}; say it otherwise, or start "
        f"from kmem problem new FILE.py"
    )


def _checked(answer: str, check: Callable[[str], None]) -> str:
    """The file in an answer: its last block of Python, or all of it."""
    blocks = _BLOCK.findall(answer)
    source = blocks[-1] if blocks else answer
    try:
        refusals = check_source(source)
    except (SyntaxError, ValueError) as ex:
        raise ProblemError(f"there is no Python file in the answer ({ex})") from ex
    if refusals:
        raise ProblemError("; ".join(map(str, refusals)))
    check(source)
    return source


def check_problem_text(source: str, check: Callable[[Path], object]) -> None:
    """Write a text to a file of its own and have that checked, its name kept out of what is wrong.

    Raises ProblemError: as `check` does.
    """
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "described.py"
        file.write_text(source, encoding="utf-8")
        try:
            check(file)
        except ProblemError as ex:
            raise ProblemError(str(ex).replace(str(file), "the file")) from ex

"""Errors that a user can act on, one class per remedy.

Every message names the thing, the cause and the fix. A bad candidate is a `Status`
(kmem/records/verdict.py), never an error. A bug keeps its traceback: nothing here wraps one.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class KmemError(Exception):
    """Something the user can mend; the command line prints it as one line and exits 1."""


class ProblemError(KmemError):
    """The problem file does not keep the contract; mend the file."""


class CaseError(KmemError):
    """The kernel cannot be judged as it is, or a check cannot run; mend what the message names."""


class TargetError(KmemError):
    """The target device is not known or not there; choose another with --target."""


#: Part of the message of a DeviceMemoryError about a problem that is too large to be judged on this
#: device; `kmem bench` tells that error from others by it.
NO_ROOM = "leaves no room on the device"
#: How BudgetExhausted begins; the figures after it depend on the order of questions side by side.
BUDGET_SPENT = "The budget for language models is spent"


#: Part of the message of an ExecutorError about a process that ended by itself, as those do that
#: the system kills for want of memory; `kmem bench` runs such a problem once more.
RUN_AGAIN = "run again with less beside it"


class DeviceMemoryError(KmemError):
    """The problem does not fit the device's memory; make the problem smaller."""


class SkillError(KmemError):
    """A skill directory breaks the format; the message lists every fault."""


class MemoryStoreError(KmemError):
    """The database cannot be read or written as it is; choose another or mend it."""


class EmbeddingError(KmemError):
    """The embedding model cannot be loaded; install it or name another in KMEM_EMBEDDING_MODEL."""


class ProfilerError(KmemError):
    """The profiler cannot run here; the message names the remedy."""


class ProviderError(KmemError):
    """A language-model provider cannot answer; the message names the remedy."""


class AnswerLost(ProviderError):
    """The connection ended after a question was sent and before its answer was whole; ask again.

    The provider may charge for such a question.
    """


class Interrupted(AnswerLost):
    """A question was broken off because the run is to end; it is not to be asked again now.

    The provider may charge for such a question.
    """


class OutOfTime(ProviderError):
    """The run's minutes ended before a question was put or answered; raise --minutes."""


class PriceError(KmemError):
    """What a question would cost in dollars is not known; give the price or limit by --tokens.

    Prices are read from the file that KMEM_PRICES names.
    """


class BudgetExhausted(KmemError):
    """The budget for language models does not cover another question; raise --usd or --tokens."""


class ReplayError(KmemError):
    """A run cannot be replayed from what was recorded; the message says what is missing."""


class ExecutorError(KmemError):
    """The machine that runs candidates failed, not the candidate."""


class NotRegistered(KmemError):
    """A name was asked for that no plugin registered; the message lists the names there are."""


class PluginError(KmemError):
    """A plugin is broken or collides with another; the message names both."""


class OutputError(KmemError):
    """The output directory cannot be written; choose another with --out."""


class RecipeError(KmemError):
    """A recipe broke its contract (illegal knobs, wrong output); the skill's author mends it."""


class BundleError(KmemError):
    """A bundle of a verdict cannot be read or written as it is; the message names the remedy."""


class LandscapeError(KmemError):
    """A recorded landscape is missing, damaged or of other work; record it again."""


def first_line(error: BaseException) -> str:
    """What was raised, in one line: the type and the first line of the text.

    The last line of the text is added if the first only says where the error is.
    """
    lines = str(error).strip().splitlines()
    # Triton's CompilationError: "at 12:14:", the source, the reason
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[-1].strip()}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def foreign_code(what: str, error: type[KmemError]) -> Iterator[None]:
    """Turn whatever code of a skill or a plugin raises into an error that names it.

    An exit that the code asks for is an error too; only an interrupt passes, and what the user can
    mend already.

    Args:
        what: what is running, as the message's beginning.
        error: what is raised instead.
    """
    try:
        yield
    except (KmemError, KeyboardInterrupt):
        raise
    except BaseException as ex:
        raise error(f"{what} raises {first_line(ex)}") from ex

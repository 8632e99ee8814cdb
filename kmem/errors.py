"""Errors a user can act on: one class per remedy; every message names the thing, the cause and the
fix.

A bad candidate is a `Status` (records.py), never one of these. A bug keeps its traceback: nothing
here wraps it.
"""


class KmemError(Exception):
    """Something the user can mend; the command line prints it as one line and exits 1."""


class ProblemError(KmemError):
    """The problem file does not keep the contract; mend the file."""


class CaseError(KmemError):
    """The kernel, or a check asked for, cannot be judged as it is; mend what the message names."""


class TargetError(KmemError):
    """The target device is not known or not there; choose another with --target."""


#: In a DeviceMemoryError about a problem that cannot be judged in what memory there is, so that
#: `kmem bench` knows it among other errors.
NO_ROOM = "leaves no room on the device"


class DeviceMemoryError(KmemError):
    """The problem does not fit the device's memory; make it smaller."""


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
    """The connection ended after a question was sent and before its answer was whole: the provider
    may charge for it; ask again.
    """


class Interrupted(AnswerLost):
    """A question was broken off because the run is to end: not to be asked again now, though the
    provider may charge for it.
    """


class OutOfTime(ProviderError):
    """A question was not put, or not answered, because the run's minutes are over; raise --minutes."""


class PriceError(KmemError):
    """What a question would cost in dollars is not known; give its price in the file KMEM_PRICES
    names, or limit by --tokens.
    """


class BudgetExhausted(KmemError):
    """What a run may spend on language models does not cover another question; raise --usd or
    --tokens.
    """


class ReplayError(KmemError):
    """A run cannot be walked again from what was recorded; the message says what is missing."""


class ExecutorError(KmemError):
    """The machine that runs candidates failed, not the candidate."""


class NotRegistered(KmemError):
    """A name was asked for that no plugin registered; the message lists those that exist."""


class PluginError(KmemError):
    """A plugin is broken or collides with another; the message names both."""


class OutputError(KmemError):
    """The output directory cannot be written; choose another with --out."""


class RecipeError(KmemError):
    """A recipe broke its own contract (illegal knobs, wrong output); the skill's author mends it."""


class EvidenceError(KmemError):
    """An evidence bundle cannot be read or written as it is; the message names the remedy."""


class LandscapeError(KmemError):
    """A recorded landscape is missing, damaged or does not fit; record it again."""


def first_line(error: BaseException) -> str:
    """What was raised, in one line: its type and the first line of its text, with the last if the
    first only says where.
    """
    lines = str(error).strip().splitlines()
    # Triton's CompilationError: "at 12:14:", the source, the reason
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[-1].strip()}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""Environment variables: how many cores they leave to this process, and which of them a job gets.

A job, such as the process of a candidate, gets none that looks like a secret.
"""

import os
import re
from collections.abc import Mapping

#: Names that hold credentials by convention: OPENAI_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY,
#: DB_PASSWORD, ...
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)

#: Cores that this process may plan with where several kmem share the machine; `kmem bench --jobs`
#: sets the variable.
CORES_VARIABLE = "KMEM_CORES"


def own_cores() -> int | None:
    """The cores that KMEM_CORES leaves to this process, at least 1.

    None if the variable is not set to a number: then the machine is this process's own.
    """
    named = os.environ.get(CORES_VARIABLE, "")
    return max(1, int(named)) if named.isdigit() else None


def scrubbed_environment(
    extra: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment variables for a job, without those whose names look like credentials.

    Args:
        extra: set last, whatever their names.
        base: what to start from; this process's environment by default.
    """
    kept = {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if not _SECRET.search(name)
    }
    kept.update(extra or {})
    return kept

"""Run git on a private clone: no prompts, no hooks, and no secrets handed on.

Nothing is read of the repository in whose directory kmem was started. sync.py shares outcomes
through it; kmem/curate/sources.py clones skills.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kmem.errors import MemoryStoreError
from kmem.host.environment import scrubbed_environment

TIMEOUT_S = 120.0
#: Settings no configuration of the user or the remote may change. Source: git-config(1).
_SETTINGS = (
    "core.hooksPath=/dev/null",
    # a link in the remote becomes a plain file: nothing outside the clone is ever read or written
    # through it
    "core.symlinks=false",
    "core.autocrlf=false",  # segments are named by their bytes
    "commit.gpgSign=false",
    "gc.auto=0",
    "user.name=kmem",
    "user.email=kmem@localhost",
)


def run_git(directory: Path, arguments: Sequence[str], *, allow: Sequence[str] = ()) -> str | None:
    """What git printed in a directory; None if it failed with one of the messages in `allow`.

    Raises:
        MemoryStoreError: if git is not installed, takes too long or fails otherwise; the message
            carries git's last line.
    """
    command = ["git", *(part for setting in _SETTINGS for part in ("-c", setting)), *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError as ex:
        raise MemoryStoreError(
            "Command git is not installed; "
            "install it, or share files with `kmem memory export` and `import`"
        ) from ex
    except subprocess.TimeoutExpired as ex:
        raise MemoryStoreError(
            f"git {arguments[0]} took longer than {TIMEOUT_S:g} s; check the remote and the network"
        ) from ex
    if done.returncode == 0:
        return done.stdout
    if any(message in done.stderr for message in allow):
        return None
    raise MemoryStoreError(
        f"git {arguments[0]} failed ({_reason(done.stderr)}); "
        "check the remote's address and your access to it"
    )


def _reason(stderr: str) -> str:
    """The line in which git says what went wrong; what follows it is general advice."""
    lines = stderr.strip().splitlines() or ["it said nothing"]
    said = [line for line in lines if line.startswith(("fatal: ", "error: ", "ERROR: "))]
    return (said or lines[-1:])[0].partition(": ")[2].rstrip(".") or lines[-1]


def _environment() -> dict[str, str]:
    # such as GIT_DIR, where a git hook started kmem
    kept = {
        name: value for name, value in scrubbed_environment().items() if not name.startswith("GIT_")
    }
    # messages are compared; nobody answers a prompt
    kept |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    # a socket to the user's agent, which private remotes need; it holds no secret itself
    if "SSH_AUTH_SOCK" in os.environ:
        kept["SSH_AUTH_SOCK"] = os.environ["SSH_AUTH_SOCK"]
    return kept

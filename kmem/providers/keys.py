"""API keys: from the environment or a `.env` file in the working directory, and never in a message.

The file is read when a key is asked for and is not put into the environment, so no child process
inherits it. Covered: NAME=value, `export NAME=value`, comments, single quotes (literal), double
quotes (with the escapes of a shell's double quotes and \\n). Not covered: values over several
lines, references to other variables.
"""

import os
import re
from pathlib import Path

from kmem.errors import ProviderError

KEY_NAMES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?$")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?$')
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_ESCAPE = re.compile(r"\\(.)")
#: Shorter than every vendor's keys, longer than a word of a program.
_SHORTEST_SECRET = 12


def parse_env(text: str) -> dict[str, str]:
    """The assignments of a `.env` file; the last of a name holds.

    A line that is no assignment is passed over.
    """
    values = {}
    for line in text.splitlines():
        found = _ASSIGNMENT.match(line)
        if found:
            values[found[1]] = _value(found[2])
    return values


def _value(written: str) -> str:
    if quoted := _SINGLE_QUOTED.match(written):
        return quoted[1]
    if quoted := _DOUBLE_QUOTED.match(written):
        return _ESCAPE.sub(
            lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), quoted[1]
        )
    return _COMMENT.sub("", written)


def find_key(name: str) -> str | None:
    """A key by its name: the environment's, else that of `.env` in the working directory.

    It is None if it is in neither or empty.

    Raises:
        ProviderError: if `.env` cannot be read, or the key holds characters that no HTTP header
            may.
    """
    key = (os.environ.get(name) or _file_values().get(name) or "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ProviderError(
            f"{name} holds characters that no key has; copy it again, alone on its line"
        )
    return key


def redact(text: str, shortest: int = 1) -> str:
    """The text without any key known here of at least so many characters.

    Servers and programs repeat what they were given.
    """
    file_values = _file_values()
    for name in KEY_NAMES:
        for key in (os.environ.get(name), file_values.get(name)):
            if key and len(key.strip()) >= shortest:
                text = text.replace(key.strip(), f"[{name}]")
    return text


def redact_answer(text: str) -> str:
    """An answer as it may be archived.

    Placeholders for servers that need no key (EMPTY, ollama) stay: code may hold such words.
    """
    return redact(text, _SHORTEST_SECRET)


def _file_values() -> dict[str, str]:
    path = Path(".env")
    try:
        return parse_env(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as ex:
        raise ProviderError(
            f"{path.resolve()} cannot be read ({type(ex).__name__}); mend or remove it"
        ) from None

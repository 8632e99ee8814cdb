"""Imports a kernel from the text that was checked, so that what runs is what was read.

Used by every process that imports a candidate; workers run from a copy of this file (standard
library only). The text reaches the process as text, not as a file: no coding cookie, no byte order
mark and no change of the file in between gives it another meaning.
"""

import io
import linecache
import sys
from types import ModuleType


def import_text(name: str, path: str, source: str) -> ModuleType:
    """A module of this name from its text; it stays in sys.modules.

    Args:
        path: shown in tracebacks. Whoever asks Python for the source of a function of the module,
            as Triton does, is given this text, whatever lies at the path.

    Raises whatever the text raises.
    """
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    # without a time of change: an entry that is never held to a file
    linecache.cache[path] = (len(text), None, io.StringIO(text).readlines(), path)
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # triton.jit and dataclasses look their module up
    exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    return module

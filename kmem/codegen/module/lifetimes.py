"""Values of a forward are let go of behind their last reader.

A local variable of Python lives until its function returns: a forward of a hundred launches would
hold every intermediate result to its end. Behind a `del` the caching allocator hands the same
memory, much of which is still in the L2 cache, to what comes next.
"""

import re
from collections.abc import Collection, Sequence

#: Names that a statement reads or binds; what follows a dot is an attribute.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_BOUND = re.compile(r"(\w+(?:, \w+)*),? = ")


def release_early(lines: Sequence[str], kept: Collection[str] = ()) -> list[str]:
    """Statements of a function's body, one a line, with a `del` behind the last use of each name.

    Only what these statements bind is let go of, and not behind the last of them, where the
    function returns. A name within a text or of a keyword argument counts as a use: it is held too
    long rather than missed.

    Args:
        kept: names that what follows reads.
    """
    last: dict[str, int] = {}
    for place, line in enumerate(lines):
        bound = _BOUND.match(line)
        last.update(dict.fromkeys(bound[1].split(", ") if bound else (), place))
        last.update((name, place) for name in _NAME.findall(line) if name in last)
    released: list[str] = []
    for place, line in enumerate(lines):
        released.append(line)
        names = [name for name, end in last.items() if end == place and name not in kept]
        if names and place < len(lines) - 1:
            released.append(f"del {', '.join(names)}")
    return released

"""`python -m kmem`: the command line, for places where the `kmem` script is not on the PATH."""

import os
import sys
from pathlib import Path

# `python -m` puts the current directory first, where modules named queue or random would
# stand in for the standard library's; the directory stays only if kmem itself is run from it
if sys.path[0] in ("", os.getcwd()) and Path(sys.path[0]).resolve() != Path(__file__).parents[1]:
    del sys.path[0]

from kmem.cli import main  # noqa: E402

main()

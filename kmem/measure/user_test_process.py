"""What runs in the process of a user's test: the walls first, then the test.

argv: one JSON object of what `run_user_test` orders. The exit code is the test's own.
"""

import json
import os
import runpy
import sys
from collections.abc import Mapping

from kmem.host.confinement import Limits, Walls, restrict_process


def main(order: Mapping[str, object]) -> int:
    """Confine this process and run the test of an order."""
    place = os.getcwd()
    for name, directory in (
        ("HOME", "home"),
        ("TMPDIR", "tmp"),
        ("TRITON_CACHE_DIR", "cache/triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "cache/inductor"),
    ):
        os.makedirs(os.path.join(place, directory), exist_ok=True)
        os.environ[name] = os.path.join(place, directory)
    restrict_process(Limits(**order["limits"]), Walls(**order["walls"]))
    sys.path[:0] = [place]
    sys.path += order["imports"]
    sys.argv = [order["file"]]
    if not order["is_pytest"]:
        runpy.run_path(order["file"], run_name="__main__")
        return 0
    import pytest  # behind the walls, and only where a test wants it

    return int(
        pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--rootdir", place, order["file"]])
    )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

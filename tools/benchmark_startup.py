"""How long `kmem --help` takes: the median of repeated runs, in a fresh process each.

python tools/benchmark_startup.py [--repeats 20]
"""

import argparse
import statistics
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "kmem", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        seconds.append(time.perf_counter() - started)
    print(
        f"kmem --help: median {statistics.median(seconds):.3f} s, slowest {max(seconds):.3f} s of "
        f"{repeats}"
    )


if __name__ == "__main__":
    main()

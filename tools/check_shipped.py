"""Check what is shipped, in one call of less than `--seconds`: `python tools/check_shipped.py`.

    start      what a package costs until its first call has returned, with a warm Triton cache
    winners    of each winner torch.library.opcheck, torch.compile(fullgraph=True) with `kmem.apply`
               and with backend="kmem", torch.export, and on a GPU CUDA-graph capture,
               reduce-overhead and AOTInductor: the module's values, and no recompilation
    buckets    RMSNorm + residual and linear + GELU over 40 shapes each, as packages, beside the
               best of eager, torch.compile and (for the product) max-autotune
    all        the three, one after the other, with a share of the time each (the default)

Winners are of problems/, or of the PATHS that are named, such as problems/softmax and
KernelBench/level1 KernelBench/level2 KernelBench/level3; directories take turns. Of `buckets` the
PATHS are names, such as linear_gelu, where not both are wanted. Kernels come from
db/evidence or are what recipes write first; there is no search. Prints a row for each thing
checked, and rewrites shipped.json under $OUT (default: runs) at each, so that a
call that is cut short leaves what it had; ends with 1 if anything failed. `--dry` does the same
without a GPU: small sizes, in the interpreter, and no times.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

if "--dry" in sys.argv:  # read when triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

from shipped_buckets import (
    BUCKETS,
    at_shape,
    bucket_worker,
    shapes_of,
    tell_buckets,
)
from shipped_checks import DEVICE, check_package
from shipped_kernels import GPU, ROOT, at_small_sizes, make_package, write_kernels
from shipped_workers import LEAST_SECONDS, Conversation, ask, ended_at

from kmem.bench.problems import find_problems
from kmem.deploy.package import Package, find_package
from kmem.errors import KmemError
from kmem.memory.store import Memory
from kmem.memory.team.exchange import import_outcomes
from kmem.problem.source.load import load_problem
from kmem.records import Problem

#: Shares of the time that the parts may take, when all run.
SHARES = {"start": 0.1, "winners": 0.4, "buckets": 0.5}
#: A core is left to this process, and one to the GPU's driver.
WORKERS_AT_ONCE = max(2, len(os.sched_getaffinity(0)) - 2)
#: What a part is given: its options, a directory, and whom it tells what it has found so far.
Part: TypeAlias = Callable[[argparse.Namespace, Path, Callable[[Any], None]], None]
#: Of the time of the buckets, after which no further shape is prepared.
PREPARING = 0.65
#: Kernels of a problem that may be tried until one is right.
KERNELS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default="all", choices=[*PARTS, "all", "worker"])
    parser.add_argument("paths", nargs="*", help="of winners, or names of buckets")
    parser.add_argument("--seconds", type=float, default=460.0, help="for all parts (default: 460)")
    parser.add_argument("--winners", type=int, default=20, help="stop after so many (default: 20)")
    parser.add_argument("--workers", type=int, default=WORKERS_AT_ONCE, help="processes at once")
    parser.add_argument("--dry", action="store_true", help="small sizes in the interpreter")
    options = parser.parse_args()
    if not GPU and not options.dry:
        sys.exit("No GPU here: --dry checks small sizes in the interpreter")
    if options.part == "buckets" and (unknown := {*options.paths} - {*BUCKETS}):
        sys.exit(f"No bucket is named {', '.join(sorted(unknown))}; there are {', '.join(BUCKETS)}")
    if options.part == "worker":
        for answer in WORKERS[options.paths[0]](*options.paths[1:]):
            print(json.dumps(answer), flush=True)
        return
    began = time.monotonic()
    kept = Kept(Path(os.environ.get("OUT", "runs")) / "shipped.json")
    parts = list(PARTS) if options.part == "all" else [options.part]
    with tempfile.TemporaryDirectory(prefix="kmem-shipped-") as place:
        os.environ["KMEM_DB"] = str(Path(place) / "kmem.db")
        with Memory() as memory:
            import_outcomes(memory, ROOT / "db" / "evidence")
        for part in parts:
            share = SHARES[part] / sum(SHARES[each] for each in parts[parts.index(part) :])
            options.ends = time.monotonic() + share * (began + options.seconds - time.monotonic())
            PARTS[part](options, Path(place) / part, partial(kept.keep, part))
            print(f"-- {part}: {time.monotonic() - began:.0f} s since the beginning", flush=True)
    sys.exit("FAILED" in json.dumps(kept.told))


class Kept:
    """What is known so far, in a file that holds all of it at every moment."""

    def __init__(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        self._place = place
        self._turn = threading.Lock()
        self.told: dict[str, Any] = {}

    def keep(self, part: str, told: Any) -> None:
        """What a part has found until now, instead of what it had before."""
        with self._turn:
            self.told[part] = told
            partial_file = self._place.with_suffix(".partial")
            partial_file.write_text(json.dumps(self.told, indent=1) + "\n", encoding="utf-8")
            partial_file.replace(self._place)


# --- start


def check_start(options: argparse.Namespace, place: Path, keep: Callable[[Any], None]) -> None:
    """Seconds from `import` to the end of the first call, in new processes, the cache warm.

    Told with and without the import of triton, which any torch.compile in the process needs too.
    """
    rows: dict[str, Any] = {}
    for name, text in BUCKETS.items():
        problem = at_shape(text, shapes_of(text)[0], place / f"{name}.py")
        with Memory() as memory:
            kernel = write_kernels(problem, memory, 1)[0]
        if not GPU:
            problem = at_small_sizes(problem, place / f"{name}_small.py")
        package = make_package([(problem, kernel)], place / name, name)
        answers = [start_once(package, options.ends) for _ in range(3)]
        rows[name] = {"cold": answers[0], "warm": answers[1:]}
        keep(rows)
        print("start", name, json.dumps(rows[name]), flush=True)


def start_once(package: Package, ends: float) -> dict[str, Any]:
    """Seconds of each step of a package's start, in a process without kmem."""
    words = [str(package.directory), package.name, DEVICE]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, *words],
            capture_output=True,
            text=True,
            timeout=max(5.0, ends - time.monotonic()),
            check=True,
        )
    except subprocess.TimeoutExpired:
        return {"late": "no time was left"}
    except subprocess.CalledProcessError as ex:
        return {"start": f"FAILED({ex.stderr.strip().splitlines()[-1:]})"}
    return json.loads(done.stdout.splitlines()[-1])


_START = """
import json, sys, time
sys.modules["kmem"] = None
import torch
directory, name, device = sys.argv[1:]
sys.path.insert(0, directory)
row = json.load(open(f"{directory}/{name}/table.json"))["entries"][0]
space = {}
exec(json.load(open(f"{directory}/{name}/{row['evidence']}"))["problem"]["source"], space)
model = space["Model"](*space["get_init_inputs"]()).to(device).eval()
inputs = [value.to(device) for value in space["get_inputs"]()]
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
wait()
times = [time.perf_counter()]
import triton
times.append(time.perf_counter())
package = __import__(name)
times.append(time.perf_counter())
handle = package.apply(model)
times.append(time.perf_counter())
with torch.no_grad():
    model(*inputs)
wait()
times.append(time.perf_counter())
steps = [round(b - a, 4) for a, b in zip(times, times[1:])]
told = dict(zip(("triton", "import", "apply", "first_call"), steps))
told["seconds"], told["beside_triton"] = round(sum(steps), 4), round(sum(steps[1:]), 4)
told["served"] = handle.status()[0].served
told["loads_compiler"] = "torch._dynamo" in sys.modules
print(json.dumps(told))
"""

# --- winners


def check_winners(options: argparse.Namespace, place: Path, keep: Callable[[Any], None]) -> None:
    """A row for each problem, several at once."""
    given = [Path(each) for each in options.paths] or [ROOT / "problems"]
    if options.dry and not options.paths:
        given = [ROOT / "problems" / "mse"]
    found = [[problem.path for problem in find_problems([path])] for path in given]
    files = [each for each in chain.from_iterable(zip_longest(*found)) if each is not None]
    rows: list[dict[str, Any]] = []
    turn = threading.Lock()

    def check(number: int, file: str) -> None:
        enough = sum("opcheck" in row for row in rows) >= options.winners
        if enough or options.ends - time.monotonic() < LEAST_SECONDS:
            return
        answer = ask("winner", file, str(place / str(number)), ends=options.ends)
        package = answer.pop("package", None)
        if GPU and package is not None:
            told = ask("ahead", package, ends=options.ends)
            answer["aoti"] = told.get("aoti", str(told))
        with turn:
            rows.append({"problem": name_of(file), **answer})
            keep(rows)
            print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)

    with ThreadPoolExecutor(1 if options.dry else options.workers) as pool:
        list(pool.map(check, range(len(files)), files))
    winners = [row for row in rows if "opcheck" in row]
    bad = [row["problem"] for row in winners if "FAILED" in json.dumps(row)]
    print(
        f"{len(winners)} winners of {len(rows)} problems looked at ({len(files)} there are), "
        f"{len(bad)} with a failure: {', '.join(bad)}",
        flush=True,
    )


def name_of(file: str) -> str:
    """A problem's file with the directory that tells it from others: level1/5_Matrix_scalar."""
    path = Path(file)
    return path.parent.name if path.stem == "problem" else f"{path.parent.name}/{path.stem}"


def winner_worker(file: str, place: str) -> Iterator[dict[str, Any]]:
    """What became of each check of one problem's winner."""
    yield check_winner(load_problem(Path(file)), place)


def ahead_worker(package: str) -> Iterator[dict[str, Any]]:
    """What becomes of a winner's package that AOTInductor compiles."""
    yield check_package(find_package(Path(package)), ahead_of_time_alone=True)


def check_winner(problem: Problem, place: str) -> dict[str, Any]:
    """What became of each check of a problem's winner, or why there is none to check.

    Nobody has judged what recipes write here: of a few kernels the first is taken whose values are
    right. Where none is, the problem fails.
    """
    try:
        with Memory() as memory:
            kernels = write_kernels(problem, memory, KERNELS)
        if not GPU:
            problem = at_small_sizes(problem, Path(place) / "small.py")
        for number, kernel in enumerate(kernels):
            package = make_package([(problem, kernel)], Path(place) / str(number), "shipped")
            row = check_package(package)
            if "opcheck" in row:
                return row | {"package": str(package.directory)}
            if "wrong" not in row:
                return row
        return {"kernel": f"FAILED(none of {len(kernels)} is right)"}
    except KmemError as ex:
        return {"skipped": str(ex).splitlines()[0]}


# --- buckets


def check_buckets(options: argparse.Namespace, place: Path, keep: Callable[[Any], None]) -> None:
    """Shapes are prepared in many processes at once, which then time them one after the other."""
    left = options.ends - time.monotonic()
    named = options.paths if options.part == "buckets" else ()  # else they are of winners
    wanted = [name for name in BUCKETS if name in (named or BUCKETS)]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    workers = 2 if options.dry else options.workers
    to_each = str(workers), str(place), str(PREPARING * left)
    told: dict[str, Any] = {}
    with ExitStack() as stack:
        asked = [
            stack.enter_context(Conversation("bucket", ",".join(wanted), str(number), *to_each))
            for number in range(workers)
        ]
        stack.enter_context(ended_at(options.ends, asked))
        told["prepared"] = [next(each.answers, None) or each.failure() for each in asked]
        print("prepared", json.dumps(told["prepared"]), flush=True)
        for each in asked:
            if time.monotonic() > options.ends - LEAST_SECONDS:
                break
            each.go_on()
            for row in each.answers:
                rows[row.pop("of")].append(row)
                print(json.dumps(row), flush=True)
                keep(told | {name: {"rows": found} for name, found in rows.items()})
            told |= each.failure()
    for name, found in rows.items():
        told[name] = tell_buckets(name, found, place / "tables")
        print(name, {key: value for key, value in told[name].items() if key != "rows"}, flush=True)
        keep(told)


PARTS: dict[str, Part] = {
    "start": check_start,
    "winners": check_winners,
    "buckets": check_buckets,
}
WORKERS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "winner": winner_worker,
    "ahead": ahead_worker,
    "bucket": bucket_worker,
}

if __name__ == "__main__":
    main()

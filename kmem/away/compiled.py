"""Compiled kernels as one file: packed where they were compiled, unpacked where they are measured.

Triton keeps each kernel in a directory named by a hash over its source, its options, its target and
the compiler, so that nothing that is unpacked can stand for anything else. The names of files in it
are told with their whole path, which is another one elsewhere.
"""

import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

_GROUP = "__grp__*.json"


def pack_kernels(cache: Path, file: Path) -> int:
    """Write the kernels of one of Triton's caches into a file; how many. Raises OSError."""
    kernels = sorted({group.parent for group in cache.glob(f"*/{_GROUP}")})
    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        for kernel in kernels:
            for part in sorted(each for each in kernel.iterdir() if each.is_file()):
                content = part.read_bytes()
                entry = tarfile.TarInfo(f"{kernel.name}/{part.name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return len(kernels)


def unpack_kernels(file: Path, cache: Path) -> int:
    """Add the kernels of a file to a cache; how many were not there. Raises OSError, TarError."""
    cache.mkdir(parents=True, exist_ok=True)
    added = 0
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=cache) as place:
        with tarfile.open(file) as archive:
            archive.extractall(place, filter="data")
        for kernel in sorted(Path(place).iterdir()):
            home = cache / kernel.name
            if home.exists():
                continue
            for group in kernel.glob(_GROUP):
                paths = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
                here = {name: str(home / Path(path).name) for name, path in paths.items()}
                group.write_text(json.dumps({"child_paths": here}), encoding="utf-8")
            try:
                os.rename(kernel, home)
                added += 1
            except OSError:  # somebody compiled it just now
                shutil.rmtree(kernel, ignore_errors=True)
    return added

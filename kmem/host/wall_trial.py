"""Tries the walls of confinement.py on this machine: a confined process tries to get out.

    for name, holds in try_walls().items(): ...

Run as a program it is that process: `python -m kmem.host.wall_trial`.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kmem.host.confinement import Limits, Walls, hide_memory, restrict_process

_SECONDS = 60
_SHORT = 64  # bytes of another process's memory


def try_walls() -> dict[str, bool]:
    """What a process that sees candidates cannot do here: name -> whether that holds."""
    hide_memory()
    ran = subprocess.run(
        [sys.executable, "-m", "kmem.host.wall_trial"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return dict(json.loads(ran.stdout))


def _attempts() -> dict[str, bool]:
    parent = os.getppid()
    return {
        "no network": _refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        or len(socket.if_nameindex()) <= 1,
        "no signal to other processes": _refused(lambda: os.kill(parent, 0)),
        "no memory of other processes": _refused(lambda: open(f"/proc/{parent}/mem", "rb"))
        and _refused(lambda: _read_memory(parent)),
        "only files it needs": _refused(lambda: open(__file__, "rb")),
        "writes in its own places only": _refused(lambda: open(f"{__file__}.tried", "wb")),
        "no capability": "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text(),
        "no process that outlives it": _refused(os.setsid),
    }


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (PermissionError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False


def _read_memory(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    mine = ctypes.create_string_buffer(_SHORT)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(mine), _SHORT)
    there = (ctypes.c_void_p * 2)(1, _SHORT)  # a forbidden reader is told so first
    if libc.process_vm_readv(pid, here, 1, there, 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")


if __name__ == "__main__":
    hidden = str(Path(__file__).resolve().parents[1])
    restrict_process(Limits(address_bytes=0), Walls(hidden=hidden))
    print(json.dumps(_attempts()))

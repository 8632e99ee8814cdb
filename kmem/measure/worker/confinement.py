"""What a worker's process gives up before it sees a candidate.

Used on both sides (the worker runs from a copy of this file; standard library only): `Limits` and
`CLONE_NEWNET` by the judge, the rest in the worker.

Covered: no network where CLONE_NEWNET is permitted; address space, file size, process count and
core files; on Linux on x86-64 and arm64 no signal to, and no debugging of, another process (so that
a candidate cannot kill the judge or the run). Not covered: the file system.
"""

import ctypes
import os
import platform
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass, field

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
#: A network namespace of one's own. Source: linux/sched.h.
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class _SystemCalls:
    """The system calls of one architecture that reach another process, by number.

    `architecture` is its audit number. `targeted` name the process a signal goes to in their first
    argument: kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo. `refused` are refused altogether:
    tkill, pidfd_send_signal, ptrace, process_vm_writev.

    Source: linux/audit.h, asm/unistd_64.h, asm-generic/unistd.h.
    """

    architecture: int
    targeted: tuple[int, ...]
    refused: tuple[int, ...]


_SYSTEM_CALLS = {
    "x86_64": _SystemCalls(0xC000003E, (62, 234, 129, 297), (200, 424, 101, 311)),
    "aarch64": _SystemCalls(0xC00000B7, (129, 131, 138, 240), (130, 424, 117, 271)),
}
#: struct seccomp_data: number at 0, architecture at 4, arguments of 8 bytes from 16. Source:
#: linux/seccomp.h.
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST_ARGUMENT = 16
# classic BPF. Source: linux/bpf_common.h
_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_AT_LEAST = 0x35
_RETURN = 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter returns EPERM
_X32 = 0x40000000  # x86-64's second table of system calls starts here


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def _three_quarters_of_memory() -> int:
    """Address space in bytes, so that the judge keeps a quarter of the machine's memory.

    What importing torch reserves is never cut off.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(64 * 2**30, max(16 * 2**30, 3 * memory_bytes // 4))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    `address_bytes` 0 means unlimited, as CUDA's reserved address space demands.
    """

    file_bytes: int = 2**30
    processes: int = 4096
    address_bytes: int = field(default_factory=_three_quarters_of_memory)


def restrict_process(limits: Limits, *, hostile: bool) -> None:
    """Give up what a kernel does not need, before torch starts threads.

    What the system does not permit is left as it is.

    Args:
        hostile: the process will see candidates, so it may signal no other process; the compiler
            of a baseline needs its children.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # die with the judge
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as score:
        # where memory runs out all the same, this process goes first, not the judge
        score.write("1000")
    libc.unshare(CLONE_NEWNET)  # refused without the privilege: network_isolation (process.py)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    # so that a full log is an OSError for its writer, not the end of the worker
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if limits.address_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (limits.address_bytes, limits.address_bytes))
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    processes = limits.processes
    if hard != resource.RLIM_INFINITY:
        processes = min(processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if hostile:
        refuse_signals(libc)


def refuse_signals(libc: ctypes.CDLL) -> None:
    """Install a seccomp filter, so that this process and its children can signal this one only."""
    calls = _SYSTEM_CALLS.get(platform.machine())
    if calls is None:
        return
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, calls.architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if platform.machine() == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for number in calls.refused:
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for place, number in enumerate(calls.targeted):
        # on to the comparison of the target
        program.append((_JUMP_EQUAL, len(calls.targeted) - place, 0, number))
    program += [
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, os.getpid()),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    instructions = (_Instruction * len(program))(*program)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(
        _PR_SET_SECCOMP,
        _SECCOMP_MODE_FILTER,
        ctypes.byref(_Program(len(program), instructions)),
        0,
        0,
    )

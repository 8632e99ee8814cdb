"""What a process gives up before it imports a candidate.

Used by the worker and by the compile process alike; workers run from a copy of this file (standard
library only). Each wall holds where the system permits it; `kmem doctor` tries them and says so.

Covered: no network; no signal to, no debugging of and no look into another process; no file but
those that Python, torch, Triton and the GPU's driver need, and none written but in places of its
own (Landlock, which needs no privilege); no capability; no session or process group of its own, so
that who ends the group ends all of it; limits on address space, file size, processes and core
files. Not covered: time and power, and a cache of compiled kernels that several candidates share.

Source: linux/landlock.h, linux/seccomp.h, linux/bpf_common.h, linux/capability.h, linux/prctl.h.
"""

import ctypes
import glob
import importlib.util
import os
import platform
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
#: A network namespace of one's own. Source: linux/sched.h.
_CLONE_NEWNET = 0x40000000
_CAPABILITIES_VERSION_3 = 0x20080522

# Landlock: system calls, the same on x86-64 and arm64; then rights
_CREATE_RULES, _ADD_RULE = 444, 445
_RESTRICT_SELF = 446
_ONLY_ASK_VERSION = _PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE = 1, 2
_READ_FILE, _READ_DIR = 4, 8
_LINK_ELSEWHERE, _TRUNCATE = 1 << 13, 1 << 14
#: What version 1 can refuse. The right to ioctl on devices is left to all: so a GPU is driven.
_FIRST_RIGHTS = _LINK_ELSEWHERE - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READING = _EXECUTE | _READ_FILE | _READ_DIR
#: From versions 4 and 6 on: TCP, and signals and abstract sockets to processes outside.
_ALL_TCP = _ALL_SCOPES = 3

#: Beside Python's and the GPU's own places. Of /etc what the loader and the C library read.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/sys")
_SETTINGS = (
    "ld.so.* nsswitch.conf passwd group hosts host.conf localtime alternatives nvidia* OpenCL"
)
_DRIVER = ("/opt/cuda", "/opt/nvidia", "/run/nvidia-persistenced", "/run/opengl-driver")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_GPU_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/dxg", "/dev/nvgpu/*/*")


@dataclass(frozen=True, slots=True)
class _SystemCalls:
    """The system calls of one architecture that reach out of a process, by number.

    `architecture` is its audit number. `targeted` name the process that they are about in their
    first argument: kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64. `refused` are
    refused altogether: tkill, pidfd_send_signal, ptrace, process_vm_readv, process_vm_writev,
    pidfd_getfd, process_madvise, kcmp, setsid, setpgid, three of io_uring (which would pass these
    by), bpf, unshare, setns, userfaultfd, open_by_handle_at, mount, umount2, pivot_root, chroot,
    perf_event_open, add_key, request_key, keyctl. Of `socket` only those between processes and to
    the kernel are left.

    Source: linux/audit.h, asm/unistd_64.h, asm-generic/unistd.h.
    """

    architecture: int
    targeted: tuple[int, ...]
    refused: tuple[int, ...]
    socket: int
    connect: int


_SYSTEM_CALLS = {
    "x86_64": _SystemCalls(
        0xC000003E,
        (62, 234, 129, 297, 302),
        (200, 424, 101, 310, 311, 438, 440, 312, 112, 109, 425, 426, 427, 321, 272, 308, 323)
        + (304, 165, 166, 155, 161, 298, 248, 249, 250),
        41,
        42,
    ),
    "aarch64": _SystemCalls(
        0xC00000B7,
        (129, 131, 138, 240, 261),
        (130, 424, 117, 270, 271, 438, 440, 272, 157, 154, 425, 426, 427, 280, 97, 268, 282)
        + (265, 40, 39, 41, 51, 241, 217, 218, 219),
        198,
        203,
    ),
}
#: struct seccomp_data: number at 0, architecture at 4, arguments of 8 bytes from 16.
_NUMBER, _ARCHITECTURE = 0, 4
_FIRST_ARGUMENT = 16
# classic BPF; what is refused returns EPERM
_LOAD, _RETURN = 0x20, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST = 0x15, 0x35
_ALLOW, _REFUSE = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x00050001)
_X32 = 0x40000000  # x86-64's second table of system calls starts here
_AF_UNIX, _AF_NETLINK = 1, 16

_libc = ctypes.CDLL(None, use_errno=True)
#: Keeps /proc/self the file that a rule was made for.
_kept: list[int] = []


def _three_quarters_of_memory() -> int:
    """Address space in bytes, so that the judge keeps a quarter of the machine's memory.

    What importing torch reserves is never cut off.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(64 * 2**30, max(16 * 2**30, 3 * memory_bytes // 4))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use.

    `address_bytes` 0 means unlimited, as CUDA's reserved address space demands.
    """

    file_bytes: int = 2**30
    processes: int = 4096
    address_bytes: int = field(default_factory=_three_quarters_of_memory)


@dataclass(frozen=True, slots=True)
class Walls:
    """What is left to a process that sees candidates, beside what every such process needs.

    `reads` and `writes` are files or directories with all beneath; `hidden` is a directory that is
    not to be read wherever it lies: kmem's own. A process on a GPU may use the driver's devices,
    and connect to its services.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    hidden: str = ""
    gpu: bool = False


def restrict_process(limits: Limits, walls: Walls | None) -> None:
    """Give up what is not needed, before a library starts threads.

    What the system does not permit is left as it is.

    Args:
        walls: None for a process that sees no candidate: the compiler of a baseline needs its
            children, its caches and the file system.
    """
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as score:
        # where memory runs out all the same, this process goes first, not the judge
        score.write("1000")
    _libc.unshare(_CLONE_NEWNET)  # refused without the privilege; sockets are refused below
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    # so that a full log is an OSError for its writer, not the end of the process
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if limits.address_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (limits.address_bytes, limits.address_bytes))
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    processes = limits.processes
    if hard != resource.RLIM_INFINITY:
        processes = min(processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if walls is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that integrity.py sees what is left
        _drop_capabilities()
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        restrict_files(walls)
        _refuse_system_calls(gpu=walls.gpu)


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hide_memory() -> None:
    """Let no process that has no privilege read or debug this one."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def show_memory() -> None:
    """Undo `hide_memory`: a process that hides its memory cannot read its own /proc/self either."""
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _drop_capabilities() -> None:
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.capset(struct.pack("Ii", _CAPABILITIES_VERSION_3, 0), bytes(24))


# ---- files


def landlock_version() -> int:
    """The version of Landlock's interface here; 0 where there is none."""
    return max(0, _libc.syscall(_CREATE_RULES, None, ctypes.c_size_t(0), _ONLY_ASK_VERSION))


def restrict_files(walls: Walls) -> bool:
    """Let this thread, and what it starts, open nothing else from now on; whether that holds.

    To be called after PR_SET_NO_NEW_PRIVS; may be called again with less. Places that do not exist
    are passed over. With it go TCP, signals and abstract sockets to processes outside, and, as a
    process may not trace what is outside, the directories of others under /proc.
    """
    version = landlock_version()
    if not version:
        return False
    rights = _FIRST_RIGHTS
    rights |= (_LINK_ELSEWHERE if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    size = 8 + 8 * (version >= 4) + 8 * (version >= 6)
    attributes = struct.pack("QQQ", rights, _ALL_TCP, _ALL_SCOPES)
    rules = _libc.syscall(_CREATE_RULES, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for place in (*_needed_places(walls), *walls.reads):
            for part, whole in _without(os.path.realpath(place), walls.hidden):
                _allow(rules, part, _READING if whole else _READ_DIR)
        for place in (*walls.writes, *(["/dev/shm"] if walls.gpu else [])):
            _allow(rules, place, rights)
        for device in (*_DEVICES, *_GPU_DEVICES) if walls.gpu else _DEVICES:
            for place in glob.glob(device):
                _allow(rules, place, _READ_FILE | _WRITE_FILE)
        _kept.append(os.open("/proc/self", os.O_PATH | os.O_CLOEXEC))
        # CUDA's driver names its threads there, and empties the file first
        _allow(rules, "/proc/self/", _READING | (_WRITE_FILE | _TRUNCATE) & rights)
        return _libc.syscall(_RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(rules: int, place: str, allowed: int) -> None:
    try:
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not here
        return
    if not os.path.isdir(place):
        allowed &= _OF_FILES
    try:
        _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, opened), 0)
    finally:
        os.close(opened)


def _needed_places(walls: Walls) -> Iterator[str]:
    """What Python, torch, Triton, a C compiler and the GPU's driver read."""
    yield from _SYSTEM
    yield from (place for name in _SETTINGS.split() for place in glob.glob(f"/etc/{name}"))
    yield from (f"/proc/{name}" for name in os.listdir("/proc") if not name.isdigit())
    roots = [os.path.realpath(root) for root in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    yield from roots
    for place in filter(os.path.isdir, sys.path):
        inside = any(os.path.realpath(place).startswith(f"{root}{os.sep}") for root in roots)
        if inside or os.path.basename(place) in ("site-packages", "dist-packages"):
            yield place
    for name in ("torch", "triton", "numpy"):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            yield os.path.dirname(found.origin)
    named = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
    yield from (
        place for name in named for place in os.environ.get(name, "").split(os.pathsep) if place
    )
    tool = os.environ.get("TRITON_PTXAS_PATH")
    if tool and os.path.isabs(tool):
        yield os.path.dirname(tool)
    yield from _compilers()
    if walls.gpu:
        yield from _DRIVER


def _compilers() -> Iterator[str]:
    """Where the C compilers that Triton may call are installed: they come with parts beside bin/.

    Nothing that the user's home lies in.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    for name in (os.environ.get("CC"), "clang", "gcc", "cc"):
        found = shutil.which(name) if name else None
        if found is not None:
            root = os.path.dirname(os.path.dirname(os.path.realpath(found)))
            if os.path.commonpath([root, home]) != root:
                yield root


def _without(place: str, hidden: str) -> Iterator[tuple[str, bool]]:
    """A place, or its parts where something hidden lies in it: (part, whether with all beneath)."""
    if not hidden or os.path.commonpath([place, hidden]) not in (place, hidden):
        yield place, True
    elif os.path.commonpath([place, hidden]) == place and place != hidden:
        yield place, False
        for name in os.listdir(place):
            yield from _without(os.path.join(place, name), hidden)


# ---- system calls


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def _refuse_system_calls(*, gpu: bool) -> None:
    """Install a filter, so that this process and its children reach no process but this one."""
    calls = _SYSTEM_CALLS.get(platform.machine())
    if calls is None:
        return
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, calls.architecture),
        _REFUSE,
        (_LOAD, 0, 0, _NUMBER),
    ]
    if platform.machine() == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32), _REFUSE]
    # a service of the GPU's driver may be asked; anybody else's could act for the candidate
    for number in calls.refused if gpu else (*calls.refused, calls.connect):
        program += [(_JUMP_EQUAL, 0, 1, number), _REFUSE]
    for number in calls.targeted:
        program += _only_with(number, (0, os.getpid()))  # 0: itself, or its own process group
    program += [*_only_with(calls.socket, (_AF_UNIX, _AF_NETLINK)), _ALLOW]
    instructions = (_Instruction * len(program))(*program)
    filter_program = _Program(len(program), instructions)
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0)


def _only_with(number: int, values: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Refuse a system call whose first argument is none of these."""
    tests = [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), _ALLOW)]
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT), *tests, _REFUSE]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]

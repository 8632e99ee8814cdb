"""Python processes that come up warm: forks of one that has imported what they would import.

    done = subprocess.run([sys.executable, "-m", "kmem", "runs", "list"])  # two seconds, cold
    done = warm.run("runs", "list")  # a twentieth

To import torch, Triton and the command line takes two to three seconds of processor time, and tests
start some hundreds of such processes. `WarmPopen` is a `subprocess.Popen` whose process is forked
by a source: a process that was started once for all tests, and has seen none of them. A fork gets
what a new process gets: arguments, environment, working directory, open files, session, a first
entry of the import path, and an end of its own. What is no Python of these tests, or wants what
only a new process has, is started as ever.

Not as in a new process: /proc names the source's command line, Python's options `-B`, `-E` and `-s`
have no effect, and the parent is the source. A fork takes whoever asked for it for its parent, and
ends with the source.
"""

import array
import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import dropwhile
from pathlib import Path
from typing import Any

#: What the sources have imported, by what is forked from them. Those that Triton's interpreter runs
#: in must have it from the start, and those that compile must not.
IMPORTS = {
    "worker": ("torch", "torch._dynamo", "triton", "triton.language.extra.libdevice"),
    "kmem": (
        "torch",
        "torch._dynamo",
        "torch.export",
        "triton",
        "kmem.cli.actions.optimize",
        "kmem.profile.compile.session",
    ),
}
#: Where kmem itself starts processes that are forked here too.
INSIDE = ("kmem.profile.compile.process", "kmem.measure.pool.template")
#: Variables that Python or a library reads before a fork could be told of them.
_READ_EARLY = ("PYTHON", "COVERAGE_", "OMP_", "LD_", "TORCH_")
_FLAGS = {"-P", "-E", "-s", "-B"}
_MOST_FILES, _MOST_BYTES = 16, 1 << 20
#: Numbers of files above those that a fork is to have.
_HIGH = 500


# --- in tests

_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
#: What subprocess.Popen hands to `_execute_child`, in order. Source: the module subprocess of 3.11.
_GIVEN = (
    *("preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags"),
    *("shell", *_PIPES, "restore_signals", "gid", "gids", "uid", "umask", "start_new_session"),
)


class WarmPopen(subprocess.Popen):
    """As subprocess.Popen; Python processes of kmem are forked from a source."""

    _warm = False

    def _execute_child(self, args, executable, *rest):  # noqa: ANN001, ANN002, ANN202
        given = dict(zip(_GIVEN, rest, strict=False))
        environment = dict(os.environ if given["env"] is None else given["env"])
        words = [] if given["shell"] else [os.fspath(word) for word in args]
        kind = kind_of(words, environment)
        if kind is None or given["preexec_fn"] is not None or executable is not None:
            super()._execute_child(args, executable, *rest)
            return
        standard = {to: given[name] for to, name in enumerate(("p2cread", "c2pwrite", "errwrite"))}
        files = {to: to if number == -1 else number for to, number in standard.items()}
        files |= {number: number for number in given["pass_fds"]}
        self._source = _address(kind)
        self._warm = True
        demand = {
            "words": words,
            "environment": environment,
            "directory": os.fspath(given["cwd"] or os.getcwd()),
            "files": list(files),
            "session": given["start_new_session"],
            "owner": os.getpid(),
            "sources": {kind: _address(kind) for kind in IMPORTS} if _is_command(words) else {},
        }
        self.pid = _ask(self._source, demand, list(files.values()))["pid"]
        self._child_created = True
        self._end = os.pidfd_open(self.pid)
        self._close_pipe_fds(*(given[name] for name in _PIPES))

    def _wait_until_gone(self, timeout_s: float | None) -> tuple[int, int]:
        """As os.waitpid answers; a process that still runs has no number."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            return 0, 0
        return self.pid, _ask(self._source, {"ended": self.pid}, [])["status"]

    def _internal_poll(self, *args: object, **options: object) -> int | None:
        if not self._warm:
            return super()._internal_poll(*args, **options)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._wait_until_gone(0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if not self._warm:
            return super()._try_wait(wait_flags)
        return self._wait_until_gone(0 if wait_flags & os.WNOHANG else None)

    def _handle_exitstatus(self, sts: int, *rest: object) -> None:
        super()._handle_exitstatus(sts, *rest)
        if self._warm:
            os.close(self._end)


def kind_of(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The source whose fork can be this process; None for one that must be new."""
    if not words or words[0] != sys.executable:
        return None
    rest = _without_flags(words)
    given = {name: text for name, text in environment.items() if name.startswith(_READ_EARLY)}
    if not given.items() <= os.environ.items() or "COVERAGE_PROCESS_CONFIG" in os.environ:
        return None
    if _is_command(words) or rest[:2] == ["-m", "kmem.profile.compile.worker"]:
        return "kmem"  # neither runs a kernel itself, so that neither is interpreted
    is_template = bool(rest) and Path(rest[0]).name == "template.py"
    return "worker" if is_template and environment.get("TRITON_INTERPRET") == "1" else None


def _without_flags(words: Sequence[str]) -> list[str]:
    """What Python is to run, and what that is given."""
    return list(dropwhile(_FLAGS.__contains__, words[1:]))


def _is_command(words: Sequence[str]) -> bool:
    return _without_flags(words)[:2] == ["-m", "kmem"]


#: Where each source listens.
_sources: dict[str, str] = {}
#: The sources that this process has started.
_started: list[subprocess.Popen] = []


def _address(kind: str) -> str:
    if kind not in _sources:
        place = Path(tempfile.mkdtemp(prefix="kmem-warm-")) / "listens"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place))
        listener.listen(64)
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        if kind == "kmem":
            del environment["TRITON_INTERPRET"]
        with listener:
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, kind, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                env=environment,
            )
        _started.append(process)
        _sources[kind] = str(place)
    return _sources[kind]


def end_sources() -> None:
    """End what was started here, and every fork with it."""
    for process in _started:
        process.stdin.close()
        process.wait()
    for place in _sources.values():
        Path(place).unlink()
        Path(place).parent.rmdir()
    _started.clear()
    _sources.clear()


def _ask(address: str, demand: Mapping[str, object], files: list[int]) -> dict:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        text = json.dumps(demand).encode()
        packed = array.array("i", files)
        connection.sendmsg(
            [len(text).to_bytes(4, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if files else [],
        )
        connection.sendall(text)
        answer = b"".join(iter(lambda: connection.recv(_MOST_BYTES), b""))
    if not answer:
        raise OSError(f"no process was forked for {demand}")
    return json.loads(answer)


class _Subprocess:
    """The module subprocess with another Popen."""

    Popen = WarmPopen

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)


@contextmanager
def started_warm() -> Iterator[None]:
    """While this lasts, the processes that kmem starts from here are forks."""
    with _starting_by(_Subprocess()):
        yield


@contextmanager
def started_cold() -> Iterator[None]:
    """While this lasts, they are new processes again."""
    with _starting_by(subprocess):
        yield


@contextmanager
def _starting_by(how: object) -> Iterator[None]:
    modules = [importlib.import_module(name) for name in INSIDE]
    before = [module.subprocess for module in modules]
    for module in modules:
        module.subprocess = how
    try:
        yield
    finally:
        for module, each in zip(modules, before, strict=True):
            module.subprocess = each


def run(*words: str, timeout: float = 900, **options: Any) -> "subprocess.CompletedProcess[str]":
    """What `python -m kmem` with these words left with, and what it wrote; options as of Popen."""
    command = [sys.executable, "-m", "kmem", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with WarmPopen(command, text=True, **pipes, **options) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


# --- in a source


def _serve(listener: socket.socket) -> dict:
    """Answer demands; returns in forks alone, with what they are to be."""
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if listener not in ready:
            os._exit(0)  # whoever started this is gone
        connection = listener.accept()[0]
        demand, files = _receive(connection)
        if "ended" in demand:
            status = os.waitpid(demand["ended"], 0)[1]
            connection.sendall(json.dumps({"status": status}).encode())
        elif os.fork() == 0:
            listener.close()
            _take_over(demand, files)
            connection.sendall(json.dumps({"pid": os.getpid()}).encode())
            connection.close()
            return demand
        for file in files:
            os.close(file)
        connection.close()


def _receive(connection: socket.socket) -> tuple[dict, list[int]]:
    head, files, _, _ = socket.recv_fds(connection, 4, _MOST_FILES)
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += connection.recv(_MOST_BYTES)
    return json.loads(text), files


def _take_over(demand: Mapping[str, object], files: list[int]) -> None:
    """Be in the session, the directory and the environment of a new process, with its files."""
    if demand["session"]:
        os.setsid()
    else:
        os.setpgid(0, os.getpgid(demand["owner"]))
    owner = os.pidfd_open(demand["owner"])
    high = [os.dup2(file, _HIGH + place) for place, file in enumerate(files)]
    for file in files:
        os.close(file)
    for file, to in zip(high, demand["files"], strict=True):
        os.dup2(file, to)
        os.close(file)
    os.chdir(demand["directory"])
    os.environ.clear()
    os.environ.update(demand["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    tempfile.tempdir = None  # what it was in the source's environment
    importlib.invalidate_caches()
    ended = select.poll()
    ended.register(owner, select.POLLIN)
    os.getppid = lambda: 1 if ended.poll(0) else demand["owner"]


def _run(demand: Mapping[str, object]) -> object:
    """Run what the words say, as Python's own start does; what it left with."""
    try:
        _begin(demand)
    except SystemExit as end:
        return end.code
    except BaseException:  # noqa: BLE001 - as Python itself does with what nobody caught
        sys.excepthook(*sys.exc_info())
        return 1
    return None


def _end(code: object) -> None:
    """End as Python does, but for taking apart what is shared with the source."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads, or it was closed
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _begin(demand: Mapping[str, object]) -> None:
    words = demand["words"]
    rest = _without_flags(words)
    if rest[0] == "-m":
        if _is_command(words):
            _sources.update(demand["sources"])
            for name in INSIDE:
                importlib.import_module(name).subprocess = _Subprocess()
        if "-P" not in words[: -len(rest)]:
            sys.path.insert(0, os.getcwd())
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(rest[0]).parent))
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")


def main() -> None:
    """argv: the kind, and the file descriptor of the socket to listen on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules["warm"] = sys.modules["__main__"]
    gc.disable()
    for name in IMPORTS[sys.argv[1]]:
        importlib.import_module(name)
    gc.freeze()  # so that forks share what is here
    gc.enable()
    demand = _serve(socket.socket(fileno=int(sys.argv[2])))
    _end(_run(demand))


if __name__ == "__main__":
    main()

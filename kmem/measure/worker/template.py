"""Forks workers: a process that has torch and triton imported, and never sees a candidate.

Started as a script from a copy, by the judge alone. To import torch takes a second of processor
time, and a worker for each candidate would pay it each time. What a candidate does in a fork stays
there. Nothing here may reach the GPU: CUDA does not outlive a fork.

It ends when the judge is gone, and so do its forks.
"""

import gc
import os
import random
import select
import signal
import socket
import sys
import time

from channel import Channel, ChannelClosed
from confinement import hide_memory, show_memory

#: How often it looks whether the judge is still there: a socket that somebody else holds open does
#: not say so.
_LOOK_S = 5.0
#: How often it looks whether a fork has ended.
_STEP_S = 0.005


def fork_on_demand(link: Channel, connection: socket.socket) -> Channel:
    """Serve the judge's demands; returns in forks alone, with the channel of that worker.

    A demand to fork names a directory and the environment, and brings two open files: the worker's
    end of its channel, and its log. One to wait names the process and for how many seconds.
    """
    judge = os.getppid()
    while True:
        if not select.select([connection], [], [], _LOOK_S)[0]:
            if os.getppid() != judge:
                os._exit(0)
            continue
        try:
            demand = link.receive()
            if "wait" in demand:
                link.send({"status": _wait(demand["wait"], demand["seconds"])})
                continue
            files = link.receive_files(2)
        except ChannelClosed:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            link.close()
            return _become_worker(files, demand["directory"], demand["environment"])
        for file in files:
            os.close(file)
        link.send({"pid": pid})


def _wait(pid: int, seconds: float) -> int | None:
    """How a fork ended, as subprocess has it; None if it still runs after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_STEP_S)


def _become_worker(files: list[int], directory: str, environment: dict[str, str]) -> Channel:
    os.setsid()
    channel, log = files
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    show_memory()  # to itself: it is confined before it sees a candidate
    random.seed()
    return Channel(socket.socket(fileno=channel))


def main() -> None:
    """argv: file descriptor of the channel to the judge."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules["kmem"] = None  # importing the judge fails
    import serve

    gc.disable()  # what is imported stays: a sixth of the time went into looking for garbage in it
    serve.import_libraries()
    gc.freeze()  # so that forks share what is here
    gc.enable()
    link = fork_on_demand(Channel(connection), connection)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve.run(link)


if __name__ == "__main__":
    main()

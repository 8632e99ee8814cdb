"""Starts a job and ends it when whoever wanted it is gone.

A job's process leads a group of its own, so that it can be ended with all it has started. That also
keeps it alive when the process that wanted it is killed, and it would go on to hold the GPU. So the
leader of the group is this file, and beside the job it starts a watcher, which waits for the end of
standard input: that only comes when nobody holds the other end any more. The watcher is a process
of its own, for Ray kills the leader with the process that wanted it, and would leave the job.

Standard library only, and not imported: it is run as `python -I -S warden.py COMMAND...`.
"""

import os
import signal
import subprocess
import sys


def _watch() -> None:
    """Kill the group, this process too, when nobody listens any more."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    os.close(1)  # whoever reads the job's output waits for its end
    os.close(2)
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command; end as it ends, by the same signal if it was one."""
    watcher = os.fork()
    if watcher == 0:
        _watch()
    job = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    # asked to stop, the job decides how; a Ctrl-C is for it alone, not for what it has started
    signal.signal(signal.SIGINT, lambda number, frame: job.send_signal(number))
    code = job.wait()
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

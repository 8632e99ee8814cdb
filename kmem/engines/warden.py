"""Starts a job and ends it when whoever wanted it is gone.

A job's process leads a group of its own, so that it can be ended with all it has started. That also
keeps it alive when the process that wanted it is killed, and it would go on to hold the GPU. So the
leader of the group is this file: it waits for the job, and for the end of its own standard input,
which only comes when nobody holds the other end any more. Standard library only, and not imported:
it is run as `python -I -S warden.py COMMAND...`.
"""

import os
import signal
import subprocess
import sys
import threading


def _end_all_when_nobody_listens() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command; end as it ends, by the same signal if it was one."""
    job = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    # asked to stop, the job decides how; a Ctrl-C is for it alone, not for what it has started
    signal.signal(signal.SIGINT, lambda number, frame: job.send_signal(number))
    threading.Thread(target=_end_all_when_nobody_listens, daemon=True).start()
    code = job.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

"""Ends a process that leads a group, with all that it has started there."""

import os
import signal


def kill_group(leader: int) -> None:
    """Kill every process of a group; one that is gone already is no error.

    The leader may have ended: what it started may outlive it.

    Args:
        leader: the process id of what was started with `start_new_session`; its parent waits for
            it afterwards.
    """
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # macOS answers so for a group of zombies

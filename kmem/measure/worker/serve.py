"""Where a worker's process starts, and how it answers commands until the judge is gone.

Started as a script from a copy; the process never imports kmem. Commands are JSON objects on the
private channel (channel.py); whatever a candidate raises becomes a `failed` answer.
"""

import socket
import sys
from typing import TYPE_CHECKING

import commands
from channel import Channel, ChannelClosed
from confinement import Limits, Walls, die_with_parent, restrict_process
from failures import CandidateFailed

if TYPE_CHECKING:
    from runner import Runner


def serve(link: Channel, runner: "Runner", *, hostile: bool) -> None:
    """Answer commands until the judge is gone.

    A failure of the worker's own files ends the process with its traceback in the log.

    Args:
        hostile: the process sees candidates: every answer says what they have replaced.
    """
    handlers = {
        commands.Attach: runner.attach,
        commands.Detach: runner.detach,
        commands.PrepareProfiler: runner.prepare_profiler,
        commands.Load: runner.load,
        commands.Unload: runner.unload,
        commands.Run: runner.run,
        commands.Reread: runner.reread,
        commands.Forget: runner.forget,
        commands.State: runner.state,
        commands.Operators: runner.operators,
        commands.Kernels: runner.kernels,
        commands.Time: runner.time,
        commands.TimeGraph: runner.time_graph,
        commands.TimeHost: runner.time_host,
    }
    while True:
        try:
            message = link.receive()
        except ChannelClosed:
            return
        nonce = message.pop("nonce")
        take_files(link, message)
        command = commands.decode_command(message)
        try:
            answer = handlers[type(command)](command)
        except CandidateFailed as failure:
            runner.settle()
            answer = failure.as_answer()
        if hostile:
            answer = {**answer, "patched": runner.integrity.changed()}
        link.send({**answer, "nonce": nonce})


def take_files(link: Channel, message: dict) -> None:
    """Receive the files of shared tensors, each into its descriptor.

    They come open: this process need not be able to open what it shares with the judge.
    """
    shared = [
        value["tensor"]
        for value in message.get("values", ())
        if isinstance(value, dict) and value.get("tensor", {}).get("via") == "file"
    ]
    for descriptor, file in zip(shared, link.receive_files(len(shared)), strict=True):
        descriptor["file"] = file


def import_libraries() -> None:
    """What takes a second, and needs neither a GPU nor anything of one worker's own."""
    import runner  # noqa: F401
    import torch  # noqa: F401
    import triton  # noqa: F401


def run(link: Channel) -> None:
    """Be the worker of this channel until the judge is gone."""
    options = link.receive()
    walls = Walls(**options["walls"]) if options["walls"] else None
    die_with_parent()
    # libraries start threads when they are imported, so what a process gives up is given up before
    restrict_process(Limits(**options["limits"]), walls)
    sys.modules["kmem"] = None  # importing the judge fails
    import torch
    import triton
    from runner import Runner

    runner = Runner(options["device"], hostile=walls is not None)
    if options["profiles"]:
        runner.prepare_profiler(commands.PrepareProfiler())
    versions = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    link.send({"ready": versions, "nonce": options["nonce"]})
    serve(link, runner, hostile=walls is not None)


if __name__ == "__main__":
    run(Channel(socket.socket(fileno=int(sys.argv[1]))))  # the file descriptor of the channel

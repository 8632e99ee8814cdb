"""The command line: noun groups, verb commands.

Only this package prints: stdout carries data, stderr text for people. Exit codes: 0 done (for
`optimize`: a verified kernel that beats the best baseline), 1 error, 2 usage, 3 nothing beat the
best baseline, 130 interrupted. An error that a user can mend is one line; a bug keeps its
traceback.

The modules of commands declare names, options and help and load no torch, so that every `--help`
and every completion is quick; what a command does with torch lies in actions/ and is imported when
the command runs.

- exit_codes.py: what the exit codes mean.
- bad_input.py: one line and exit code 2 for a file that cannot be judged.
- group.py: errors as one line, and commands whose modules are loaded when they are asked for.
- display/: what commands show: live panels, tables, texts and JSON.
- options/: the options that commands share, as frozen records.
- actions/: what commands do that loads torch.
- page_beside.py: the page in a process beside a run.
- memory/: `kmem memory` and `kmem db`: outcomes shared, and the file they lie in.
- making/: `kmem optimize` and `kmem bench`, and what is done before them.
- by_hand/: the stages of a round and the judge, each on its own.
- runs/: `kmem runs`, `kmem why` and `kmem report`: what came of runs.
- shipping/: `kmem export` and `kmem install`: packages of kernels.
- skills/: `kmem skills`: the library looked at, written, grown.
- machine/: what this machine can do, and what serves on it: the page, coding agents.
- commands.py: the table of all built-in commands.
"""

import faulthandler
import gc
import signal
import sys

import click

import kmem
from kmem.cli.commands import BUILT_IN
from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.cli.group import Group
from kmem.plugins import build_plugin_manager, collect

#: Objects made before garbage is looked for. Importing torch makes a million that stay, and
#: Python's own 700 has them walked over and over: a seventh of the time of a command that loads it.
_GARBAGE_THRESHOLD = 50_000
#: How long a thread that writes kernels keeps the interpreter from one that judges, in seconds. The
#: latter gives it up with every operator that it asks for: a module that is built and called three
#: times in 0.22 s took 3.56 s beside the writing of ResNet18's kernels at Python's own 5 ms, and
#: 0.33 s at this; the writing took 9.9 and 9.8 s (two cores, CPU, 2026-11-28).
_SWITCH_INTERVAL_S = 1e-4


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kmem.__version__, prog_name="kmem")
def cli() -> None:
    """Make PyTorch modules fast with Triton, and remember how.

    `kmem optimize problem.py` profiles a module, diagnoses its bottleneck against what the hardware
    could do, asks the skill memory what fixes it, writes Triton kernels, proves them correct,
    measures them, and records what happened.
    """


for command in BUILT_IN:
    cli.add_command(command)


def main() -> None:
    """Run `kmem` with the arguments of the process: built-in commands and those of plugins."""
    if sys.stderr is not None:  # a crash in native code then says where every thread was
        faulthandler.enable()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Shells start background jobs of scripts with SIGINT ignored, and whatever these start inherits
    # it; a run is stopped by that signal: by Ctrl-C, by the page, by `kmem bench`.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        registry = collect(build_plugin_manager(), cli.commands)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    for reason in registry.left_out:
        click.echo(f"Warning: {reason}", err=True)
    for name, command in registry.commands.items():
        cli.add_command(command, name)
    cli(obj=registry)

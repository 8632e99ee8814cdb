"""The table of all built-in commands: name, module, and the first sentence of the help.

`kmem --help` prints these sentences without loading the commands. tests/test_cli_group.py holds
that each of them is the first sentence of its command's own help.
"""

from kmem.cli.group import LazyCommand

_TABLE = (
    ("optimize", "making.optimize", "Make the module in PROBLEM fast."),
    (
        "plan",
        "making.whole",
        "Show the pieces of a model, what each would save, and what that would cost.",
    ),
    ("extract", "making.whole", "Write the pieces of a model as problem files into DIRECTORY."),
    (
        "bench",
        "making.bench",
        "Run `kmem optimize` on many problems and print how much was gained.",
    ),
    ("models", "making.models", "List language models (default: list)."),
    ("problem", "making.problem", "Begin a problem file, or look at one without a run."),
    (
        "skills",
        "skills.skills",
        "List, search, show, add, check, learn and export skills (default: list).",
    ),
    ("runs", "runs.runs", "List, show, compare, resume, replay and prune runs (default: list)."),
    ("export", "shipping.export", "Write the kernels that runs found as a package to ship."),
    (
        "install",
        "shipping.install",
        "Install a package of kernels, after judging each of them again here.",
    ),
    ("why", "runs.why", "Say why RUN did what it did in ROUND (default: in every round)."),
    ("report", "runs.report", "Show the report of a run, or write its page as one HTML file."),
    ("ui", "machine.ui", "Show runs, kernels, skills and the memory in a browser, live."),
    (
        "memory",
        "memory.memory",
        "Share, merge, retract and count measured outcomes (default: stats).",
    ),
    ("db", "memory.db", "Find, check and recover the database file (default: path)."),
    (
        "doctor",
        "machine.doctor",
        "Report what works on this machine, and measure the GPU's ceilings.",
    ),
    (
        "plugins",
        "machine.plugins",
        "List what plugins registered: skills, authors, providers, commands and all other kinds.",
    ),
    (
        "profile",
        "by_hand.stages",
        "Profile every launch of one forward and print a Profile as one JSON line.",
    ),
    ("diagnose", "by_hand.stages", "Name the bottleneck with its evidence, by arithmetic."),
    ("prescribe", "by_hand.stages", "Offer skills for a Diagnosis JSON line on stdin."),
    (
        "verify",
        "by_hand.verify",
        "Judge a kernel file against the module it replaces, or repeat what an evidence bundle "
        "says.",
    ),
    (
        "measure",
        "by_hand.verify",
        "Judge a kernel file and time it, in pairs, against eager and compiled PyTorch; needs a "
        "GPU.",
    ),
    ("mcp", "machine.mcp", "Serve skills, profiles, diagnoses and the judge to coding agents."),
)

BUILT_IN = tuple(
    LazyCommand(name, f"kmem.cli.{module}", summary) for name, module, summary in _TABLE
)

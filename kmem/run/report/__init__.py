"""What a run came to: report.md for people, and a record for programs.

- finished.py: a finished run as its report tells it, with its counts.
- starting.py: what became of the user's own kernel, where a run started from one.
- first_screen.py: the verdict, how the kernel is used, what limits it, what to try next.
- costs.py: what the language models of a run cost, by role and for each win.
- control.py: the control arm of a report: the first kernels alone, beside the search.
- convergence.py: the plot of a run.
- outlook.py: the end of a report: why a run stopped, and what would be tried next.
- report.py: report.md.
- result.py: what a run came to, for a program or a notebook.
- loading.py: a finished run, found by its directory or its id.
"""

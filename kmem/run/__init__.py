"""One run of `kmem optimize`, from the problem's file to the report.

Data passes in one direction: what is remembered and what the authors write becomes candidates, the
evaluator's verdicts on them become attempts in the history, the history becomes the situations of
the next round, and the recorder keeps a copy of everything in memory and in the run directory.

- directory.py: the run directory and its files.
- setup/: what a run is told and works with, and never changes: settings, session.
- state/: what changes as it goes: the minutes, the history, and what is kept of it.
- evaluation/: kernels compiled, judged and measured; the baselines.
- stages/: the steps of a run: recall, survey, authors, verdicts, the end.
- report/: what a run came to: report.md, its plot, the result for programs.
- loop.py: the order of the stages, round after round: the map of a run.
- perform.py: a run carried out: the search, its state in memory, its results written.
- ahead.py: what a run begins with, compiled before the run.
- replay.py: `kmem runs replay`: walk a finished run again from its records.
"""

"""`kmem bench`: the main job over many problems, each a job of an executor.

- problems.py: the problem files of directories, files and KernelBench checkouts.
- rows.py: what became of one problem, as a row.
- results.py: the directory of a bench: results.jsonl and the manifest.
- command.py: what kmem is told to run a problem, and what is read of how that goes.
- sharing.py: how the runs on one machine share its cores.
- purse.py: the dollars of a bench, shared out among its problems.
- schedule.py: many problems, some at once, and what an interrupt does.
- utilisation.py: how long each GPU was in use.
- scores.py: the numbers over all rows.
- comparing.py: two benches paired row by row, with intervals.
- plot.py: the picture of all times.
- page.py: the table and the page.
"""

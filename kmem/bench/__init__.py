"""`kmem bench`: the main job over many problems, each in a process of its own.

- problems.py finds the problem files of directories, files and KernelBench checkouts.
- process.py runs `kmem optimize` on one of them; schedule.py runs many, some at once.
- rows.py says what became of one; results.py keeps results.jsonl and the manifest; scores.py has
  the numbers over all rows.
- page.py renders the table and the page, plot.py the picture.
"""

"""Orchestrate: what a round tries, and when a run has done enough.

Pure functions of a run's records; nothing here runs, measures or asks.

- lineage.py: what an attempt answered, and the kernel it started from, through chains of repairs.
- stop.py: when a run has done enough, and which gain counts.
- yields.py: what a run may expect of its next measurements, by how earlier searches went.
- vetoes.py: what this run has refuted, and what it doubts.
- strategies.py: from which kernels a round goes on, and which direction gets how many samples.
- plan.py: a round's tasks.
- accuracy.py: kernels refused for their error as tasks one rung up the precision ladder.
- repair.py: failed candidates as tasks for their authors.
"""

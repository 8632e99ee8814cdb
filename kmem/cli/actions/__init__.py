"""What commands do that loads torch; the modules of commands import these when a command runs.

- stages.py: profile, diagnose and prescribe, each on its own.
- whole.py: whole models: their tables, their plan, and their pieces as files.
- whole_run.py: carry out a run on a whole model.
- problem.py: begin a problem file, or say what a run would make of one.
- describe.py: write a problem file from a description in words.
- optimize.py: carry out a run, new or resumed.
- optimize_away.py: carry out a run on a worker of a cluster.
- shapes.py: carry out a run for each shape, and ship what they found as one table.
- replay.py: walk a finished run again.
- judge.py: judge one kernel, or repeat a bundle.
- termination.py: SIGTERM taken for a Ctrl-C.
- crews.py: crews of other machines, by the name of an executor.
- bench.py: run many problems.
- bench_crew.py: the workers of a bench, and what its problems are run by on them.
- piece_crew.py: the workers that the pieces of a whole model run on.
- bench_pair.py: pair the rows of two benches.
- record.py: record the landscapes of many problems.
- ablate.py: compare searches with and without memory on recorded landscapes.
- try_recipe.py: try the recipe of a skill on a problem.
- try_rewrite.py: try the rewrite of a skill on a problem.
- try_moves.py: tell where the moves of a skill lead on a problem.
- page.py: what the page gets from the command line.
- cluster.py: the machines of a cluster, and what differs between them.
- doctor.py: check what this machine can do.
"""

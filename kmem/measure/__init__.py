"""The judge: runs kernels in processes of their own and holds them to the problem's own module.

Kernels come in from run/, measurements go out. A candidate is confined by kmem/host/confinement.py;
the winner is verified by `Judge.verify`. Rooms import only from those above them in this list, in
which data passes from the innermost to the outermost:

- worker/: what is copied into a candidate's process, and nothing else.
- pool/: worker processes, and the memory that they share with the judge.
- oracle/: what is right: the problem's module, its inputs, and the answers outputs are held to.
- timing/: how fast: times that workers take on the judge's orders, and what they mean.
- examine/: one kernel in one worker, held to the reference check by check.
- settings.py: what a judge is told beside the problem.
- resources.py: what one judge makes once and lends to its steps.
- source_scopes.py: what the names of a file stand for, scope by scope.
- source_names.py: what a kernel file may name: modules, and everything else by what it really is.
- source_calls.py: calls by which a file would say one thing and run another.
- source_check.py: refuses what no kernel needs, before anything runs.
- bundle.py: everything that stands behind one verdict, in one file that `kmem verify` repeats.
- verdicts.py: what is made of an examination: a measurement and a bundle.
- shortage.py: out of device memory: a kernel's own demand, or what others hold.
- examiner.py: takes a kernel through steps of an examination; whatever goes wrong is a verdict.
- screening.py: many kernels, cheaply: two input families each, then a race.
- stopwatch.py: the time of a kernel that passed every check, and whether that time can be true.
- competition.py: the baselines of a problem, loaded side by side and timed.
- user_test.py: the user's own test of a kernel, as a further check of a final verdict.
- user_test_process.py: what runs in the process of a user's test: the walls, then the test.
- verification.py: the steps of a final verdict, cheapest and most telling first.
- judge.py: the judge itself: baselines, screening, verification.
"""

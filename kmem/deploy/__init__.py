"""Winners of runs as packages that a team ships, and bound to the modules of a model.

- shipped/: the code that every package holds.
- beside/: the scripts that lie beside a package: its tests and its benchmark.
- recording.py: the calls of a module as a table holds them.
- entries.py: the winner of a run as an entry of a table.
- card.py: the README of a package: what is in it, how good it is, and whose it is.
- package.py: an exported package, written and found again.
- formulas.py: texts at several sizes as one text whose numbers are formulas of the size.
- widening.py: a winner at the sizes around its own, where its recipe writes the same code.
- bucketed.py: a run for each of many shapes, and one package of what they found.
- flashinfer.py: winners as a data set of FlashInfer-Bench.
- sources.py: kernels as callers name them: results, packages, and their directories.
- installed.py: packages that `kmem install` has put on this machine.
- installing.py: `kmem install`: a package checked, judged again and kept.
- remembered.py: winners of this machine's own runs, for the backend.
- backend.py: `torch.compile(model, backend="kmem")`.
"""

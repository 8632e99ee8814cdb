"""The options that commands share, as frozen records that a command takes as one parameter.

- records.py: how a record declares its options and a command takes it.
- contract.py: what several commands ask in the same words: precision, purity, target, memory.
- models.py: which language model plays which role, and the grammar of those options.
- authors.py: who writes kernels, and the models that they need.
- baselines.py: which baselines a kernel must beat, and how long timing them may take.
- budget.py: how many rounds and minutes a search may take.
- stages.py: what the stages by hand and the look at a problem can be told.
- whole.py: what the commands on whole models share.
- run.py: what a run of `kmem optimize` is made from.
- run_name.py: which run a command is about, by its id, its directory, or its problem's name.
- past_runs.py: which of the past runs a command is about.
- words.py: the options of a command as words again, for the same command elsewhere.
- executor.py: on which machines a command works.
- bench.py: what `kmem bench` runs or records.
- judge.py: how `kmem verify` and `kmem measure` judge.
- ablation.py: what `kmem memory ablate` compares.
"""

"""What a run is told and works with: all that is settled before it begins.

- settings.py: what a new run is told, and the run made of it.
- shapes.py: one run for each shape of a problem.
- worded_problem.py: a problem file from a description, by a language model.
- tracing.py: a problem traced for a run, and what to know of it.
- preview.py: what a run would make of a problem, without a run.
- session.py: what a run works with and never changes: traced problem, skills, recipes.
- ceilings.py: what the GPU can do at most, measured once and kept.
"""

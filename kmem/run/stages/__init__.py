"""The steps of a run, in the order in which loop.py takes them.

The beginning:

- parts.py: the parts of a run, put together and carried from stage to stage.
- first_skills.py: the skills that a model is told for a first kernel.
- recall.py: what memory offers when the run begins.

A round (stage 4 is kmem/orchestrate/, stage 6 evaluation/measuring.py):

- survey.py: stages 1 to 3 of a round: profile, diagnose, prescribe for every parent kernel.
- consulting.py: stage 3: the skills offered for a diagnosis, and what they earned.
- authors.py: stage 5: who proposes directions and writes candidates.
- batches.py: in which order candidates are measured, and how many at a time.
- stopping.py: whether the next measurements are worth it, by what memory knows.
- reflect.py: the end of a round: what its measurements taught.

The end:

- verifying.py: final verdicts: an early one, and down the ranking at the end, with repairs.
- conclude.py: the end of a run: its winner kept, and what came of it.
"""

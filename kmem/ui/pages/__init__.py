"""What each page shows: functions of a memory and a request, free of any web server.

- run_story.py: all that memory has of one run.
- module_map.py: where the module's own time goes, for the pages of a run and of a problem.
- whole_model.py: a whole model, piece by piece, for runs on its pieces.
- runs.py: the list of runs.
- run.py: one run: verdict, staircase, candidates, descent, rounds.
- kernel_tables.py: the tables of a candidate: errors, claims, metrics, launches.
- kernel.py: one candidate: verdict, times, roofline, profile, diff, source.
- problems.py: problems over all their runs.
- compare.py: two runs side by side.
- landscapes.py: recorded landscapes of knobs.
- skills.py: the skill library, and one skill.
- memory.py: what the memory holds, and its outcomes.
- machine.py: what this machine can do.
"""

"""What a run knows of itself, the minutes that it has, and what it keeps as it goes.

- clock.py: the minutes of a run, and providers of language models that keep to them.
- resume.py: where a run is resumed: what an earlier process finished of it.
- history.py: what the run knows of itself: attempts, lessons, baselines, profiles.
- recorder.py: where a candidate is recorded, with all that becomes known of it.
- background.py: what models are told beside attempts, kept for every round.
- conversations.py: what was asked of language models, as files.
- breakdown.py: where the module's own time goes, kept in the run directory.
- progress.py: what a run tells its display.
- diary.py: the same as lines in the run directory, for who looks at a run from outside.
"""

"""Runs as a database keeps them: enough to resume, replay and explain each.

- runs.py: `memory.runs`: runs, kernels, attempts, profiles, diagnoses, plans, lessons, verdicts.
- entries.py: `memory.run_entries`: the list of runs, and where each stands.
- faults.py: `memory.faults`: what language models get wrong most often.
- conversations.py: `memory.conversations`: questions to language models and their answers.
"""

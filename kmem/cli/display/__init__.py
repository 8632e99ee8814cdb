"""What commands show: live panels and tables, texts for people, data for programs.

- live.py: a live panel on a terminal, plain lines elsewhere.
- run.py: how a run stands.
- entries.py: runs in a list, where each stands.
- result.py: the result of a run as data.
- picture.py: a run as bars and steps in the terminal.
- whole.py: where the time of a whole model goes, and its plan, as text.
- problem.py: what a run would make of a problem, as text.
- diagnosis.py: a diagnosis as text.
- verdict.py: a verdict as text.
- bench.py: how a bench stands.
- landscapes.py: how a recording stands, and how arms compare.
- skills.py: tables, hits, status and track record of skills.
- vocabulary.py: the words that a SKILL.md may use, with a line about each.
"""

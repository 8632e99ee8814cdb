"""Commands on skills.

- registered_skills.py: the skills that plugins and users registered, for the commands on them.
- skills.py: `kmem skills list`, `show` and `search`, and the table of the others.
- skill_files.py: `kmem skills new`, `validate`, `try` and `vocabulary`.
- growth.py: `kmem skills add`, `remove`, `distill`, `retract` and `export`.
"""

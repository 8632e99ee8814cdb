"""Commands that make modules fast, and those that come before.

- models.py: `kmem models`, which language models there are.
- problem.py: `kmem problem`, a problem file begun, and one looked at without a run.
- whole.py: `kmem plan` and `kmem extract`, whole models before anything is spent.
- optimize.py: `kmem optimize`, the main job.
- bench.py: `kmem bench`, the main job over many problems, and the recording of landscapes.
"""

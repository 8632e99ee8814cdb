"""Explore: who writes the candidate kernels of a run.

The authors implement `kmem.interfaces.Author`; kmem/default_plugins/authors.py registers them.

- on_demand.py: stands for an author until a run begins with it.
- given/: the author that brings the user's own kernel, and moves its numbers.
- recipes/: the author that writes by executable skills, without a language model.
- models/: the author that asks language models.
"""

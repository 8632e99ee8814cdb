"""What kmem registers through its own hooks, as any plugin would.

- bundled_skills.py: the skills that ship with kmem, and those that the user added.
- providers.py: language-model providers.
- authors.py: authors of kernels: the user's own, the recipe engine and language models.
- profilers.py: profilers, the best first.
- executors.py: where jobs run.
- checkers.py: source checks that are asked for by name.
"""

"""The stages of a round and the judge as commands of their own.

- stages.py: `kmem profile`, `diagnose` and `prescribe`, which pipe JSON lines.
- verify.py: `kmem verify` and `kmem measure`, the judge on its own.
"""

"""The corpus of candidates: honest ones that must pass, dishonest ones that must be refused.

- problems.py: the small problems that candidates are written for.
- honest.py: candidates that must pass, of varied style.
- dishonest.py: dishonest and wrong candidates with the status each must get.
- judging.py: the whole verdict on one candidate, in a worker that all share.
"""

"""The author that brings the user's own kernel into a run, and moves its numbers.

- launches.py: the Triton kernels of a file, and the numbers that their launches hand them.
- tunables.py: a file whose numbers to tune are module-level constants, with their spaces.
- author.py: the author: the kernel as it was given first, then at other numbers.
"""

"""The inputs that a module is judged on, and those of other sizes and layouts.

- drawing.py: lets a problem draw its inputs where they will lie.
- traits.py: what every input family keeps of the problem's own inputs.
- families.py: values beyond those that the problem draws.
- variants.py: the same inputs at other sizes and in other layouts.
- filled.py: the inputs of one workload, filled with a draw or a family.
"""

"""Proof that memory helps: whole knob landscapes measured once, every search answered from them,
and arms compared.

In the order of use: suite.py (which problems, at which sizes), sampling.py (which settings are
worth recording), landscape.py (the record and its files), recording.py (measure on the GPU),
replay.py (answer a search from the record), ablation.py (what each arm remembers, and its runs),
metrics.py (what a run cost), comparison.py (arms compared, with intervals), picture.py (the plot).
"""

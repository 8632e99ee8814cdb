"""What a graph costs on a device, before anything runs.

- work.py: the arithmetic of one node.
- vendor.py: what share of a device the vendor's convolutions reach, and what else it takes.
- bound.py: the least time of a graph on a device, and what each node costs eager.
- footprint.py: whether a problem can fit a device at all.
"""

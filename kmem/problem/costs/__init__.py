"""What a graph costs on a device, before anything runs.

- work.py: the arithmetic of one node.
- vendor.py: what share of a device the vendor's convolutions reach, and what else it takes.
- bound.py: the least time of a graph on a device, and what each node costs eager.
- issuing.py: what one more launch costs in a forward, where the host is the slower one.
- footprint.py: whether a problem can fit a device at all.
"""

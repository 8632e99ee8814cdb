"""A problem file becomes a graph of operators, with sizes, costs and a least time.

From the ground up; a package or file imports only what stands above it here:

- dtypes.py: the dtypes that emitted kernels load.
- sizes.py: arithmetic on sizes that more than one room does.
- graph.py: the operator graph of one forward, as plain data.
- operators/: what every operator of a graph means, costs and is called: one table.
- homes.py: where a value may lie within the result of a concatenation.
- described/: a problem file from a description in words.
- tracing/: tensors without memory, from a forward to its graph, and what a graph computes.
- costs/: the least time of a graph on a device, and whether it fits.
- source/: a problem file read, held to the contract, and built at a workload.
- features/: what a graph shows: its mode, its name in words, its patterns.
- sizing/: other sizes: shapes that are asked for, and those that are small enough.
- traced.py: a problem with its workloads, graphs and bound, as the stages get it.
- breakdown.py: where the time of a forward goes, part by part.
"""

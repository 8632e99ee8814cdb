"""A problem file becomes a graph of operators, with sizes, costs and a least time.

In the order in which a problem passes:

- described/: a problem file from a description in words.
- reach.py: which constants, functions and classes of a file reach which function.
- substitution.py: other sizes put in place of those that a file gives.
- shapes.py: a range of shapes, and the problem at each of them.
- load.py: a problem file read, held to the contract, and built at a workload.
- constructor.py: how a class of a file may be called, read from its text.
- fake_recurrences.py: recurrent operators on fake tensors, by one step of theirs.
- fake.py: tensors without memory, on which problems are checked and traced.
- operators/: what every operator of a graph means, costs and is called: one table.
- graph.py: the operator graph of one forward, as plain data.
- evaluate.py: what a graph computes, node by node.
- trace.py: from a forward to its graph.
- mode.py: training or evaluation, and what that means for a kernel.
- shrinking.py: ways to make the numbers of a problem smaller.
- workload.py: sizes at which a problem is small enough for the interpreter.
- between.py: workloads of which some sizes are those of the file.
- traced.py: a problem with its workloads, graphs and bound, as the stages get it.
- work.py: the arithmetic of one node.
- vendor.py: what share of a device the vendor's convolutions reach, and what else it takes.
- homes.py: where a value may lie within the result of a concatenation.
- bound.py: the least time of a graph on a device, and what each node costs eager.
- breakdown.py: where the time of a forward goes, part by part.
- footprint.py: whether a problem can fit a device at all.
- patterns.py: what a graph shows beside its operators, for skills that act on it.
- naming.py: what a graph does, in words of the vocabulary.
- patterns.py: what it shows beside its operators, for skills that act on it.
- sizes.py: arithmetic on sizes that more than one room does.
- dtypes.py: the dtypes that emitted kernels load.
"""

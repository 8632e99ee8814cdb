"""What every exported package holds, and nothing else: the standard library and torch.

An export copies these files; in the copy they import one another relatively. `kmem.apply` uses them
here. In the order in which a package uses them:

- table.py: the entries of table.json: which kernel serves which inputs on which device.
- calls.py: the calls that a module makes, by which most modules to replace are found.
- fingerprint.py: a hash of what a module computes, by which the others are.
- supports.py: whether a kernel may serve a call; the first clause that fails is the reason.
- sharing.py: a kernel's ModelNew on the parameters and buffers of somebody's module.
- between.py: entries for sizes between those of a table, made at their first call.
- launches.py: a kernel's launches as torch can trace them.
- ops.py: each kernel as an operator of torch.library, for torch.compile and torch.export.
- warm_start.py: compiled kernels found in Triton's cache without reading all of Triton first.
- standing.py: how an entry stands in a model, and why not otherwise.
- bound_kernel.py: one entry's kernel on the state of one module: whether it may answer a call.
- patch.py: kernels bound to the modules of a model, and taken away again.
- patterns.py: what a kernel computes as a pattern of ATen operators, and where a graph holds it.
- inductor.py: a pass for Inductor that puts kernels where a graph computes the same.
- hub_layers.py: layers for `kernelize` of Hugging Face's `kernels`.
"""

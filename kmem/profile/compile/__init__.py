"""Compile modules for a GPU that need not be there, and read what came out.

- pool.py: whole modules in, reports out, on several processes at once.
- process.py: one compile process: its start, its channel, its end.
- worker.py: what runs in that process: one JSON line in per kernel, one out.
- session.py: what the kernels of one problem share there: inputs on meta, the target's properties.
- helpers.py: the kernels of one module, compiled on several cores at once where these are idle.
- target_driver.py: a Triton driver that can only compile, and the tools that Triton carries.
- recorder.py: the launches of one forward, recorded while it only compiles.
- sass.py: registers, spills and machine instructions of a compiled kernel.
- lanes.py: how far apart the elements lie that the lanes of a load read, from Triton's IR.
- masks.py: which lanes of loads and stores masks leave in, from Triton's IR.
- ttir.py: bytes and FLOPs of one program, counted in Triton's own IR.
- report.py: the answer about one module as a report.
- occupancy.py: how many blocks of a kernel live on one multiprocessor at once.
"""

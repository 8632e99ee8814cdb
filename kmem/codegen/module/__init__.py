"""The file: what recipes wrote, put together as a module that needs nothing of kmem.

- alignment.py: one text from the same program at several sizes.
- constants.py: the block of constants, and the module with another one.
- staging.py: the part of a launcher that depends on parameters alone.
- runtime.py: what a module needs beside its kernels: handles, scratch, kept weights.
- launchers.py: launchers that pass tensors alone, through the compiled kernels' handles.
- entries.py: kernels as they were written, and what calls them with constants of their module.
- shared_scratch.py: one allocation of scratch for a whole forward.
- fetching.py: how a forward gets at its parameters and buffers.
- library_calls.py: library calls and constants as text.
- placing.py: values that lie within the result of a concatenation.
- counters.py: counters of batches, moved along by one call.
- lifetimes.py: what a forward needs no more is let go of.
- plan.py: what is to be written out, and the order of its steps.
- forward.py: the forward of one workload, and what its inputs are recognised by.
- reference.py: what of the problem's own text a module carries.
- lint_excuses.py: rules of linters that are none for kernels.
- layout.py: generated text in lines of 100 columns.
- model.py: the class `ModelNew`.
- assemble.py: the module file.
"""

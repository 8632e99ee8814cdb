"""One kernel in one worker, held to the reference check by check; any fault ends it as a `Refused`.

In the order in which a kernel passes them:

- examination.py: what has been found about one kernel, one run of it, and one comparison.
- forgiving.py: what an output may be off by for reasons that are not the candidate's.
- loading.py: gives a worker the candidate's file and the reference's parameters, and takes it back.
- places.py: the memory that outputs lie in.
- cases.py: one input family: outputs, mutation of inputs, accuracy.
- state.py: parameters and buffers after forwards.
- repeats.py: the same call again, several in a row, and results that a later call must leave.
- provenance.py: who did the work: operators, launches, GPU kernels.
- variants.py: the same values in other layouts, other sizes and other scalars.
- compiled.py: what is compiled for the target, where there is no GPU.
- timed_calls.py: what timed calls returned, by the spots that they left.
"""

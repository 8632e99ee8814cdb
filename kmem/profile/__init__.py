"""Profile: what every launch of one forward does, counted, timed or estimated.

- description.py: what another process is told so that it can build a problem's inputs.
- collect.py: which profiler is used: the first that can run here, the next if it fails.
- serving.py: which values of the graph each launch makes.
- structure.py: what the kernel's Triton text is made of.
- job.py: the job that a GPU profiler gives its executor.
- harness.py: the program in that job, confined as a worker is.
- watched.py: what that program does: it runs the forward that is looked at.
- launch_marks.py: the launches of that forward timed one by one, and counted where they are picked.
- picking.py: which launches have their counters read, and a whole forward from these.
- build.py: a candidate's model, built from its file, for the processes that run one.
- ncu.py: the `ncu` profiler: hardware counters, collected by Nsight Compute.
- ncu_csv.py: Nsight Compute's CSV, read into launches with raw counters.
- cupti.py: the `cupti` profiler: times from torch.profiler, with figures of the binaries.
- compile/: modules compiled for a GPU that need not be there, and what their binaries say.
- vendor.py: what share of the roofline a vendor's kernels reach, by operator.
- estimate.py: a time for compiled launches that never ran.
- derive.py: what follows of a launch's binary, arguments and time, where no counter was read.
- static.py: the `static` profiler: compiled figures with estimated times.
- selftest.py: the compiler and the interpreter tried on kernels of a few lines.
- special_function.py: the Triton kernel that keeps the special-function unit busy.
- ceilings.py: what the GPU here reaches: bandwidths, product rates, the cost of a launch.
"""

"""What runs in a candidate's process, and nothing else.

The process is given copies of these files and of some from kmem/host (`WORKER_FILES` in
pool/process.py). kmem cannot be imported there, so the files import one another and these by plain
names, and beside these the standard library, torch and triton. Three of them are used by the
judge's side too, as `kmem.measure.worker.channel`: channel, commands, tensors.

In the order in which a process uses them:

- template.py: a process with everything imported that forks workers and sees no candidate.
- serve.py: where a worker starts, and how it answers commands until the judge is gone.
- channel.py: how judge and worker talk: JSON messages over a socket pair.
- commands.py: what a worker can be asked: one record for each command.
- runner.py: carries commands out, with the loaded modules and the tensors they are called with.
- failures.py: what a candidate's code raised, and at which stage.
- tensors.py: tensors that both processes see, and plain values as JSON.
- free_memory.py: fills free device memory with NaN, so that an unwritten output shows.
- results.py: what a forward returned: a description for the judge, and copies for it.
- overlap.py: where the outputs of a forward lie.
- operators.py: the operators that one call dispatches, and the values that it reads into Python.
- patching.py: Triton's interpreter without half of its work, which changes nothing.
- lineage.py: where the bytes of outputs came from, through operators and launches.
- copying.py: what interpreted kernels carry, and what they work out.
- kernel_flow.py: the same of compiled kernels, read in their Triton IR.
- interpreting.py: makes Triton's interpreter answer as a GPU would.
- waiting.py: interpreted programs of one launch that wait for each other take turns.
- races.py: programs that read what others of the same launch write.
- launches.py: the Triton kernels that one call launches, and all kernels that the GPU ran.
- integrity.py: functions and flags of torch, triton and time that a candidate has replaced.
- clocks.py: the times of calls, by CUDA events and by the host's clock.
- tuning.py: lets Inductor tune a baseline while nobody else uses the GPU.
"""

"""What the machine around a process gives, and what processes on it share.

- environment.py: cores to plan with, and an environment without secrets for a job.
- syntax.py: parse Python text, one thread at a time.
- project_modules.py: a project's own modules, importable by its problem files alone.
- confinement.py: what a process gives up before it imports a candidate.
- wall_trial.py: tries on this machine what such a process cannot do.
- process_group.py: ends a process with all that it has started.
- checked_text.py: imports a kernel from the text that was checked.
- deadline.py: a deadline for the user's code in this process.
- kernel_identity.py: what a launch of a Triton kernel is: text and values.
- own_operators.py: what an operator is made of that a file defines for itself.
- imitated_device.py: lets a kernel believe that it runs on a GPU.
- parallel.py: ask several questions at once.
- lease.py: one lease per GPU, so that timing is not disturbed.
- visible_gpus.py: the GPUs that this process sees, one by one.
- cores.py: one pool of cores for all runs of a bench.
- memory_share.py: who may fill how much of a GPU's memory.
"""

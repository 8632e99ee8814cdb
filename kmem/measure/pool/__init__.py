"""The workers as the judge's side handles them: processes, and the memory that they share with it.

In the order in which they are used:

- template.py: the process that workers are forked from.
- process.py: one worker process: started, questioned, killed.
- workers.py: all workers of one judge: started ahead of need, handed out fresh, ended for certain.
- shared_directory.py: the directory that shared memory lies in, gone when its judge is gone.
- arguments.py: lists of tensors and plain values that a judge and its workers see.
- checksum.py: checksums of tensors, so that a change of an input is seen.
"""

"""Where work is done: on this machine, on a Ray cluster, or by Slurm.

- executor.py: the contract of an executor: single jobs, and a crew of workers for many.
- warden.py: starts a job and ends it when whoever wanted it is gone.
- single_job.py: one job in a directory of its own, followed to its end.
- scheduler.py: which worker gets which work when, and what a lost worker costs.
- desk.py: a scheduler in a thread of its own, for callers that wait for single works.
- local.py: the executor of this machine.
- ray_crew.py: the executor of a Ray cluster.
- ray_actor.py: what runs in a worker process of Ray.
- slurm_crew.py: the executor of a Slurm cluster, by submitit.
- card.py: which GPU this is, in what state, and how it differs from another.
- nodes.py: the machines of a cluster side by side: what differs between them.
"""

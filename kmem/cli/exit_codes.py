"""The exit codes of commands, beside 0 (done) and those of click: 1 (error) and 2 (usage)."""

#: A kernel was judged and did not pass (`kmem verify`, `kmem measure`).
EXIT_NOT_PASSED = 1
#: A recipe matched nothing of a problem, or what it wrote is wrong (`kmem skills try`).
EXIT_TRY_FAILED = 1
#: A problem of a bench has no result.
EXIT_SOME_FAILED = 1
#: A replay went another way than the run it repeats.
EXIT_REPLAY_DIFFERS = 1
#: A file cannot be judged at all.
EXIT_BAD_INPUT = 2
#: No verified kernel beats the best baseline.
EXIT_NOTHING_BEAT_BASELINE = 3
#: Ctrl-C, as shells report it: 128 and the number of SIGINT.
EXIT_INTERRUPTED = 130

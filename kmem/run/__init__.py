"""One run of `kmem optimize`, from the problem's file to the report.

Data passes in one direction: what is remembered and what the authors write becomes candidates, the
evaluator's verdicts on them become attempts in the history, the history becomes the situations of
the next round, and the recorder keeps a copy of everything in memory and in the run directory.

- settings.py: what a new run is told, and the run made of it.
- shapes.py: one run for each shape of a problem.
- perform.py: a run carried out: the search, its state in memory, its results written.
- loop.py: the order of the stages, round after round: the map of a run.
- parts.py: the parts of a run, put together and carried from stage to stage.
- tracing.py: a problem traced for a run, and what to know of it.
- worded_problem.py: a problem file from a description, by a language model.
- preview.py: what a run would make of a problem, without a run.
- session.py: what a run works with and never changes: traced problem, skills, recipes.
- ceilings.py: what the GPU can do at most, measured once and kept.
- resume.py: where a run is resumed: what an earlier process finished of it.
- consulting.py: stage 3: the skills offered for a diagnosis, and what they earned.
- first_skills.py: the skills that a model is told for a first kernel.
- background.py: what models are told beside attempts, kept for every round.
- recall.py: what memory offers when the run begins.
- directory.py: the run directory and its files.
- clock.py: the minutes of a run, and providers of language models that keep to them.
- progress.py: what a run tells its display.
- diary.py: the same as lines in the run directory, for who looks at a run from outside.
- breakdown.py: where the module's own time goes, kept in the run directory.
- survey.py: stages 1 to 3 of a round: profile, diagnose, prescribe for every parent kernel.
- authors.py: stage 5: who proposes directions and writes candidates (stage 4 is orchestrate/).
- conversations.py: what was asked of language models, as files.
- processes.py: compilers and workers, started before the problem is traced.
- evaluator.py: the seam to the world: where kernels are compiled, judged and profiled.
- ahead.py: what a run begins with, compiled before the run.
- baselines.py: how fast the unmodified module is.
- measuring.py: stage 6: candidates through the evaluator, without the duplicates.
- history.py: what the run knows of itself: attempts, lessons, baselines, profiles.
- recorder.py: where a candidate is recorded, with all that becomes known of it.
- stopping.py: whether the next measurements are worth it, by what memory knows.
- reflect.py: the end of a round: what its measurements taught.
- compiling.py: what a kernel comes to when it is compiled for the target.
- verifying.py: final verdicts: an early one, and down the ranking at the end, with repairs.
- conclude.py: the end of a run: its winner kept, and what came of it.
- finished.py: a finished run as its report tells it, with its counts.
- first_screen.py: the verdict, how the kernel is used, what limits it, what to try next.
- costs.py: what the language models of a run cost, by role and for each win.
- convergence.py: the plot of a run.
- starting.py: what became of the user's own kernel, where a run started from one.
- outlook.py: the end of a report: why a run stopped, and what would be tried next.
- control.py: the control arm of a report: the first kernels alone, beside the search.
- report.py: report.md.
- result.py: what a run came to, for a program or a notebook.
- loading.py: a finished run, found by its directory or its id.
- replay.py: `kmem runs replay`: walk a finished run again from its records.
- single.py: one kernel before the judge, outside a run.
"""

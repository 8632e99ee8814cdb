"""The author that asks language models: a kernel from a prompt, read, checked and paid for.

- roles.py: the six roles a model plays, and which model plays each.
- granularity.py: how first kernels differ: what each takes on, and the skill it rests on.
- starting.py: the kernel that a recipe writes for the module, to begin from.
- knobs.py: numbers that a model leaves open in its kernel, and the kernels at other values.
- selection.py: what of a run the author goes on with: skills, knob settings, failures, attempts.
- lessons.py: lessons held to outcomes.
- prompts/: what a role is told: system messages, and the sections of the user message.
- conversation.py: how a role is asked: from the archive, else from its model, with one re-ask.
- complaints.py: what the user hears of models none of whose answers could be used.
- answers/: how an answer is read, and held to the code, the log and the metrics it is about.
- cost/: what questions cost: prices, the budget of a run, and its usage.
- author.py: the author: which role is asked what, and the directions and candidates made of it.
"""

"""Training or evaluation: in which mode a problem's module is made fast, and what that means.

A module runs in the mode in which its constructor leaves it, which is training unless the file says
otherwise; so KernelBench runs its problems. Batch norm and dropout compute something else in each
mode, and a kernel is written for one of them.
"""

from dataclasses import replace

from kmem.problem.graph import OpGraph
from kmem.records import Problem

MODES = ("train", "eval")

_SUFFIX = """


# kmem: --mode {mode}
def _made_in_mode(construct):
    def construct_in_mode(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        self.train({training})

    return construct_in_mode


Model.__init__ = _made_in_mode(Model.__init__)
"""
#: Parts of operators' names that compute something else in each mode, with their name for people.
_TELLING = {"batch_norm": "batch norm", "instance_norm": "instance norm", "dropout": "dropout"}


def in_mode(problem: Problem, mode: str | None) -> Problem:
    """The problem with its module in a mode ("train" or "eval"); as it is for None.

    The file's text says so at its end, so that it holds wherever the problem or a module emitted
    for it is run.
    """
    if mode is None:
        return problem
    suffix = _SUFFIX.format(mode=mode, training=mode == "train")
    return replace(problem, source=problem.source.rstrip("\n") + suffix)


def describe_mode(graph: OpGraph) -> str | None:
    """The mode of a graph, and what a kernel for it is good for; None if the mode changes nothing.

    An opaque graph says nothing of it.
    """
    if not graph.mode_matters or graph.opaque_reason is not None:
        return None
    found = [
        name for part, name in _TELLING.items() if any(part in node.target for node in graph.nodes)
    ]
    what = " and ".join(found) or "the module"
    if not graph.training:
        return (
            f"eval mode ({what} as in inference): the kernel runs after .eval(), without "
            "gradients; in training the module runs as it is"
        )
    return (
        f"training mode ({what} as in training), as the file leaves the module: the kernel runs "
        "only while module.training is True and no gradients are recorded, which deployed models "
        "never are; for inference give --mode eval, or call self.eval() in __init__"
    )

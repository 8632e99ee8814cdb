"""From a forward to its graph of operators, on tensors that have no memory.

- fake_recurrences.py: recurrent operators on fake tensors, by one step of theirs.
- fake.py: tensors without memory, on which problems are checked and traced.
- kept.py: tensors in attributes that a forward writes before it reads them.
- calls.py: calls of traced graphs as nodes.
- derivatives.py: operators of autograd's backward in plain ones.
- flattening.py: pointwise operators after a product computed as it lies.
- backward.py: a graph with autograd's operators taken apart into them.
- trace.py: from a forward to its graph.
- drawing.py: masks of dropout drawn apart from what they drop.
- evaluate.py: what a graph computes, node by node.
"""

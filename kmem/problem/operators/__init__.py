"""What every operator of a traced graph means: one table by aten target.

To add an operator, add one row to the module of its family, or register the row from a plugin:

    @kmem.hookimpl
    def register_operators(register):
        register(
            Operator(
                "mylib.cube.default",
                "pointwise",
                parameters=parameters("x"),
                lowering=Pointwise(lambda x: f"{x} * {x} * {x}"),
            )
        )

Bounds, prompts, skills' gates and the recipes of its kind then know it. Only the recipe of a single
operator (a pooling, attention) reads its arguments itself.

In the order in which they build on each other:

- expressions.py: Triton expressions as rows write them, with the jitted helpers that they call.
- arithmetic.py: the rules by which rows count operations.
- builder.py: what a row's lowering writes with; code generation implements it.
- row.py: the record of one operator, and the ways in which recipes can write it.
- reductions.py: sums, extremes, variances, norms over elements, softmax.
- norms.py: layer, rms, group, instance and batch norm; PReLU.
- element_losses.py: losses with a term per element.
- losses.py: losses and similarities with a term per row.
- products.py: matrix products of every spelling; attention.
- convolutions.py: convolutions, transposed ones, recurrent layers.
- pooling.py: max, average and adaptive pooling.
- scans.py: running sums and products.
- layout.py: views, copies, constants, and what is picked by index.
- pointwise.py: activations, arithmetic, comparisons.
- table.py: the rows of all families and of plugins, found by target.
"""

"""A model put together again, with kernels in it, and bound to the user's own.

- compose.py: a model put together again, with kernels in the places of pieces.
- trained.py: a piece in training, its forward and its backward between them.
- compiled_rest.py: the rest of a composed graph compiled by Inductor, around the kernels.
- in_place.py: what stands in the place of a module's forward, and how it has fared.
- bound_piece.py: a piece of a composed model on the parameters of the user's.
- binding.py: a composed model bound to a user's model, and taken away again.
- bucket_table.py: a model composed at several shapes, and the one that serves a call.
"""

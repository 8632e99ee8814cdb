"""Convolutions and poolings: whatever slides a window; what serves one skill lies with its recipe.

- windows.py: axes, tiles and taps of windows.

Dense convolutions, as products:

- convolution.py: dense convolutions in one form.
- closing.py: reductions over the channels that a tile of a convolution holds.
- norming.py: a batch norm in training mode, whose statistics the tiles leave.
- summing.py: reductions over all positions of an image, of which the tiles leave parts.
- pooled_tile.py: poolings whose windows a tile of a convolution holds whole.
- launching.py: where results lie, the window, and the launcher.
- gathered_taps.py: taps staged beside their channels, where there are few channels.
- staged_operands.py: an image staged in half precision, and a packed filter.
- boxed_conv.py: the product of staged operands that the hardware copies as boxes.
- walking_conv.py: the product by programs that walk over the tiles and keep the filter.
- staged_conv.py: the product of staged operands.
- staged_space.py: knobs of the staged convolutions, and which settings are legal.
- staged_recipe.py: the recipe class of the staged convolutions.

Poolings and depthwise convolutions, as stencils:

- strip_writer.py: the kernel of a stencil, in strips of whole rows.
- stencil.py: what poolings and depthwise convolutions compute, and their emission as strips.
- strip_tuning.py: settings and costs of strips.
"""

"""From a traced graph to Triton: what recipes share, and the file that holds what they wrote.

Text of kernels and launchers:

- calls.py: calls as text: launches, allocations, the launcher's function.
- definitions.py: jitted functions from lines, for all kernels that are generated.
- anchors/: kernels as files of Triton, read as text.

Pointwise chains, reductions, softmax, norms and losses, from nodes to kernels:

- pointwise.py: pointwise nodes as expressions.
- region.py: a region: a small program over tiles.
- lowering.py: from nodes to the statements of a region.
- matching.py: which nodes form one region.
- row_recipe.py: the recipe classes of row-wise and pointwise skills.
- pointwise_kernel.py: the kernel, settings and cost of a region without reductions.
- reductions.py: what each kind of reduction keeps, and how its tiles, lanes and parts combine.
- launching.py: index arithmetic of row kernels, and what launchers allocate.
- rowwise_access.py: loads and stores of row kernels, 16 bytes at a time.
- rowwise_space.py: settings of row kernels.
- rowwise_cost.py: what a setting of a row kernel should cost.
- rowwise_passes.py: text of the passes over a row.
- rowwise_bodies.py: bodies of row kernels by strategy.
- rowwise.py: the kernels and launcher of a region with reductions.
- rowwise_total.py: the kernel that sums what rows left.

Running sums and products:

- scan.py: the records of one scan.
- scan_views.py: which element belongs to an index of a scan, through layout operators.
- scan_matching.py: from a graph to its scans.
- scan_space.py: settings and costs of scan kernels.
- scan_kernel.py: what the kernels of a scan are handed and told.
- scan_recipe.py: the recipe class of the scan skills.

What the recipes below share; what one skill needs alone lies beside its recipe.py:

- settings.py: settings as a record.
- rates.py: what a device reaches under load.
- parts.py: numbers in parts of a lower precision.
- accumulate.py: running sums kept short: chains, and compensated totals.

What follows an anchor:

- chain.py: a chain of pointwise nodes as a function that the anchor's kernel calls.

Matrix products:

- epilogue.py: what follows a product element by element and is written with it.
- ports.py: the functions that kernels are handed, and how launches hand them in.
- approximate.py: the same where operands were rounded, in cheaper arithmetic.
- prologue.py: what is done to an operand of a product while it is read.
- places.py: places along axes as text, through operators that lay data out anew.
- unpacking.py: what a product does to packed weights while it reads them.
- joined.py: several products of one operand as one: the copy of their weights.
- contraction.py: matrix products of every spelling in one form.
- product_sites.py: the products of a graph as sites.
- joined_text.py: what follows joined products, as the statements of one function.
- joined_sites.py: two products of one operand and what is made of both.
- shared_sites.py: products of one operand that are written in one launch.
- matmul.py: text that the matrix-product recipes share.
- finishing.py: the kernel that finishes rows of which tiles left parts.
- partial_rows.py: rows of a product reduced where its tiles are stored.
- product_tuning.py: settings and costs of tiled products.
- tiled_kernel.py: the kernel of tiled products.
- tiled_product.py: the recipe class of tiled products.

Convolutions and poolings:

- windows.py: axes, tiles and taps of windows.
- convolution.py: dense convolutions in one form.
- closing.py: reductions over the channels that a tile of a convolution holds.
- pooled_tile.py: poolings whose windows a tile of a convolution holds whole.
- staged_operands.py: an image staged in half precision, and a packed filter.
- staged_conv.py: the product of staged operands.
- staged_recipe.py: the recipe class of the staged convolutions.
- strip_writer.py: the kernel of a stencil, in strips of whole rows.
- stencil.py: what poolings and depthwise convolutions compute, and their emission as strips.
- strip_tuning.py: settings and costs of strips.

The file:

- launch_text.py: a launcher as data: its launches, its constants where they are used.
- evaluating.py: expressions of literals and known names.
- jit_text.py: jitted functions as text: their parameters, and what a call gives these.
- alignment.py: one text from the same program at several sizes.
- constants.py: the block of constants, and the module with another one.
- written.py: the pointers that a kernel may store through.
- staging.py: the part of a launcher that depends on parameters alone.
- runtime_text.py: what a module needs beside its kernels: handles, scratch, kept weights.
- launcher_writer.py: launchers that pass tensors alone, through the compiled kernels' handles.
- entries.py: kernels as they were written, and what calls them with constants of their module.
- shared_scratch.py: one allocation of scratch for a whole forward.
- steady.py: what parameters alone decide of a forward.
- library_calls.py: library calls, constants and attributes as text.
- forward.py: the forward of one workload, and what its inputs are recognised by.
- reference_text.py: what of the problem's own text a module carries.
- lint_excuses.py: rules of linters that are none for kernels.
- layout.py: generated text in lines of 100 columns.
- module.py: the module file.
"""

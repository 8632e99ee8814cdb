"""Running sums and products, with what stands around them folded in.

- scan.py: the records of one scan.
- views.py: which element belongs to an index of a scan, through layout operators.
- matching.py: from a graph to its scans.
- recipe.py: the recipe class of the scan skills.
- space.py: settings and costs of scan kernels.
- kernels.py: the kernels of scans, as a file of kernels.
- launches.py: what the kernels of a scan are handed and told.
"""

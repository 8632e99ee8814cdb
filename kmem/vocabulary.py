"""The closed vocabularies that skills, sites, signatures and outcomes are written in.

`OPERATORS` maps every operator name to its family; which name an operator of a traced graph has
stands in kmem/problem/operators/. `GRAPH_PATTERNS` are what a graph shows beside its operators
(kmem/problem/features/patterns.py), `SOURCE_FEATURES` what a kernel's text is made of.
`SIGNATURE_METRICS` are the dimensions that a diagnosis can use, whatever profiler filled them;
`KNOB_ROLES` are the words in which recipes and moves speak of knobs. A name outside these tables is
a load error wherever it is read, so that a rule can never silently not match.
"""

from dataclasses import dataclass

#: Operator name -> family. Sites, skills (`kmem-ops`) and outcomes use exactly these names; `any`
#: is allowed in skills only.
OPERATORS: dict[str, str] = {
    "pointwise": "pointwise",
    "sum": "reduction",
    "mean": "reduction",
    "max": "reduction",
    "min": "reduction",
    "prod": "reduction",
    "argmax": "reduction",
    "argmin": "reduction",
    "variance": "reduction",
    "logsumexp": "reduction",
    "vector_norm": "reduction",
    "softmax": "softmax",
    "log_softmax": "softmax",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "group_norm": "norm",
    "instance_norm": "norm",
    "batch_norm": "norm",
    "l1_norm": "norm",
    "l2_norm": "norm",
    "frobenius_norm": "norm",
    "cumsum": "scan",
    "cumprod": "scan",
    "cummax": "scan",
    "max_pool": "pooling",
    "avg_pool": "pooling",
    "adaptive_pool": "pooling",
    "matmul": "matmul",
    "batched_matmul": "matmul",
    "matvec": "matmul",
    "linear": "matmul",
    "diagonal_matmul": "matmul",
    "triangular_matmul": "matmul",
    "conv": "convolution",
    "pointwise_conv": "convolution",
    "depthwise_conv": "convolution",
    "conv_transpose": "conv_transpose",
    "attention": "attention",
    "loss": "loss",
    "recurrent": "recurrent",
    "embedding": "indexing",
    "sort": "indexing",
    "layout": "layout",
    "opaque": "opaque",
}

FAMILIES: tuple[str, ...] = tuple(sorted(set(OPERATORS.values())))


@dataclass(frozen=True, slots=True)
class GraphPattern:
    """Something in a graph that a skill may act on.

    `spells` is the operator that the pattern stands for, written out in others; "" for none.
    """

    meaning: str
    spells: str = ""


#: What skills may say of a graph beside its operators (`kmem-graph`).
GRAPH_PATTERNS: dict[str, GraphPattern] = {
    "averaged_product": GraphPattern("a product or convolution is averaged or summed over rows"),
    "product_summed_over_columns": GraphPattern("a product is averaged or summed over columns"),
    "reduced_product": GraphPattern("a reduction or softmax reads what a product makes"),
    "chained_products": GraphPattern("a product reads another product"),
    "pointwise_before_product": GraphPattern(
        "a product or convolution reads a pointwise or normed result"
    ),
    "pointwise_after_product": GraphPattern("a pointwise operator reads a product or convolution"),
    "gated_products": GraphPattern("two products of one input meet in a pointwise operator"),
    "readers_of_one_input": GraphPattern("several reductions or products read one tensor"),
    "many_small_products": GraphPattern("four products or more have results of one shape"),
    "norm_beside_pointwise": GraphPattern("a norm stands beside a pointwise operator"),
    "mean_of_loss": GraphPattern("a pointwise result is summed or averaged to one number"),
    "shifted_scan": GraphPattern("a flip, shift or concatenation stands beside a scan"),
    "rotated_halves": GraphPattern("a negated part of a tensor and another are put together"),
    "monotone_before_max": GraphPattern("a maximum reads a non-decreasing pointwise function"),
    "depthwise_then_pointwise": GraphPattern("a convolution reads a depthwise one"),
    "recurrence": GraphPattern("slices of a tensor are stepped through", "recurrent"),
    "picked_log_softmax": GraphPattern("one element of each log-softmax is taken", "loss"),
    "softmax_between_products": GraphPattern("a softmax stands between products", "attention"),
    "unfolded_product": GraphPattern("a product reads unfolded windows", "conv"),
    "permuted_product": GraphPattern("a product between two turns of a tensor", "pointwise_conv"),
    "scaled_by_squares": GraphPattern("a row is scaled by the mean of its squares", "rms_norm"),
    "scaled_by_spread": GraphPattern("a row is scaled by its spread about its mean", "layer_norm"),
    "shared_exponentials": GraphPattern("exponentials are divided by their sum", "softmax"),
    "independent_products": GraphPattern(
        "two products neither wait for another nor share a tensor"
    ),
    "few_channels": GraphPattern("a convolution of eight input channels or fewer"),
    "outer_reduction": GraphPattern("a reduction leaves the last dimension"),
    "norm_over_outer_axis": GraphPattern("a tensor's own figures of an outer axis scale it"),
    "repeated_heads": GraphPattern("an attention reads keys or values repeated for several heads"),
    "masked_attention": GraphPattern("an attention is causal or masked"),
    "given_lengths": GraphPattern("places are compared with lengths that are given"),
    "concatenated_results": GraphPattern("results are copied into one tensor"),
    "turned_result": GraphPattern("a product or attention is turned and copied"),
    "prepared_weight": GraphPattern("something is computed of parameters alone"),
    "affine_after_product": GraphPattern("constants or a vector scale or shift a product"),
    "pooled_transposed": GraphPattern("an average pooling reads a transposed convolution"),
    "symmetric_product": GraphPattern("a tensor is multiplied with its own transpose"),
    "step_without_effect": GraphPattern("an operator changes nothing"),
    "few_rows": GraphPattern("a product of few rows reads a large operand"),
    "long_sum": GraphPattern("a product sums many more terms than its result has rows or columns"),
    "batch_statistics": GraphPattern("figures of each channel are taken over batch and pixels"),
    "pooled_planes": GraphPattern("each plane of an image is reduced to one number"),
    "few_long_rows": GraphPattern("rows are joined or scanned that are few and long"),
    "many_short_rows": GraphPattern("rows are joined or scanned that are many and short"),
    "few_queries": GraphPattern("an attention has few queries for many keys"),
    "overlapping_windows": GraphPattern("windows overlap: a pooling's or a thin convolution's"),
    "interleaved_parts": GraphPattern("parts are taken that lie beside each other in a row"),
    "turned_copy": GraphPattern("a tensor is copied with another axis last"),
}


#: What a kernel's Triton text is made of (kmem/profile/structure.py): how many of each.
SOURCE_FEATURES: dict[str, str] = {
    "loads": "loads from global memory",
    "stores": "stores to global memory",
    "masks": "loads and stores that have a mask",
    "gathers": "loads from addresses that were themselves loaded",
    "rereads": "arguments that two loops, one behind the other, load from",
    "dots": "products for the tensor cores (tl.dot)",
    "loops": "loops that are not unrolled",
    "unrolled": "loops that tl.static_range unrolls",
    "atomics": "atomic updates",
    "reductions": "reductions over lanes (tl.sum, tl.max)",
    "scans": "scans over lanes (tl.cumsum, tl.associative_scan)",
    "specials": "exponentials, logarithms, roots and the like",
    "divisions": "quotients and remainders that differ from lane to lane",
    "turns": "tiles that are transposed or permuted",
    "copies": (
        "copies and conversions of tensors, by kernels or calls that do nothing else, and fills of "
        "tensors that are then overwritten"
    ),
}

#: Those that are a fault by themselves: a skill that demands one is about mending it.
SYMPTOMS = frozenset({"gathers", "rereads", "atomics", "divisions", "copies", "unrolled"})


@dataclass(frozen=True, slots=True)
class SignatureMetric:
    """One dimension of a signature.

    `scale` is the value at which the dimension is saturated, for normalising; `meaning` says what
    the dimension tells.
    """

    unit: str
    scale: float
    meaning: str


#: Dimensions of a signature. `_pct` is 0..100; a missing value is unknown, never zero.
SIGNATURE_METRICS: dict[str, SignatureMetric] = {
    "speed_of_light": SignatureMetric("ratio", 1.0, "bound time over measured time"),
    "traffic_ratio": SignatureMetric(
        "ratio", 8.0, "DRAM bytes moved over the bytes that must move"
    ),
    "dram_throughput_pct": SignatureMetric(
        "%", 100.0, "DRAM bytes per second over the device's peak"
    ),
    "l2_throughput_pct": SignatureMetric("%", 100.0, "L2 throughput over its peak"),
    "l1_throughput_pct": SignatureMetric("%", 100.0, "L1/TEX throughput over its peak"),
    "l2_hit_pct": SignatureMetric("%", 100.0, "L2 sector hits over lookups"),
    "l1_hit_pct": SignatureMetric("%", 100.0, "L1 sector hits over lookups"),
    "sector_efficiency_pct": SignatureMetric(
        "%", 100.0, "bytes used over bytes fetched by global loads, 32-byte sectors"
    ),
    "access_bytes": SignatureMetric(
        "bytes", 16.0, "bytes that one load or store of a lane is about, 16 at most"
    ),
    "reuse_ratio": SignatureMetric(
        "ratio", 8.0, "bytes that programs load and store over those of the arguments"
    ),
    # The caches of instructions hold 128 KiB for a multiprocessor and 12 KiB for each of its four
    # parts, which is what skills ask for. Source: Jia et al., "Dissecting the NVIDIA Volta GPU
    # architecture via microbenchmarking", 2018, section 3.
    "code_bytes": SignatureMetric("bytes", 131072.0, "bytes of a kernel's instructions"),
    "sm_throughput_pct": SignatureMetric("%", 100.0, "busiest SM pipe or issue slot over its peak"),
    "tensor_pipe_pct": SignatureMetric(
        "%", 100.0, "tensor-core pipe active cycles over elapsed cycles"
    ),
    "fma_pipe_pct": SignatureMetric("%", 100.0, "fp32 FMA pipe active cycles over elapsed cycles"),
    "xu_pipe_pct": SignatureMetric(
        "%", 100.0, "special-function pipe active cycles over elapsed cycles"
    ),
    "occupancy_pct": SignatureMetric(
        "%", 100.0, "resident warps over the maximum, achieved where measured"
    ),
    "registers_per_thread": SignatureMetric(
        "registers", 255.0, "registers the compiler allotted to a thread"
    ),
    "spill_bytes_per_thread": SignatureMetric(
        "bytes", 512.0, "local memory a thread uses for spilled registers"
    ),
    "shared_bytes_per_block": SignatureMetric("bytes", 232448.0, "shared memory of one block"),
    "waves": SignatureMetric(
        "waves", 8.0, "blocks over the blocks resident at once on the whole device"
    ),
    "memory_stall_pct": SignatureMetric(
        "%", 100.0, "issue-stalled cycles that wait for global or local memory"
    ),
    "barrier_stall_pct": SignatureMetric(
        "%", 100.0, "issue-stalled cycles that wait at a block barrier"
    ),
    "branch_divergence_pct": SignatureMetric(
        "%", 100.0, "thread slots predicated off or masked out of executed instructions"
    ),
    "launches": SignatureMetric("kernels", 32.0, "GPU kernels launched by one forward"),
    "host_overhead_pct": SignatureMetric(
        "%", 100.0, "share of a forward during which the GPU waits for the host"
    ),
    "work_ratio": SignatureMetric(
        "ratio", 8.0, "arithmetic executed over the arithmetic the result needs"
    ),
}
#: Those that no profiler counts: they are read from a kernel's binary, where there is one.
BINARY_METRICS = frozenset({"access_bytes", "reuse_ratio", "code_bytes"})

#: Bottleneck (kmem.records.Bottleneck) -> what it says of a kernel.
BOTTLENECK_MEANINGS: dict[str, str] = {
    "redundant_traffic": "more bytes move through DRAM than the result needs",
    "uncoalesced": "neighbouring threads read addresses far apart, so fetched bytes are wasted",
    "dram_bandwidth": "DRAM is busy: only fewer bytes help",
    "l2_or_l1_bandwidth": "a cache or shared memory is busy, not DRAM",
    "tensor_core_idle": "matrix arithmetic that tensor cores could do waits or runs elsewhere",
    "fma_bound": "the fp32 units are busy",
    "issue_bound": "the issue of instructions is busy, whatever they do",
    "special_function_bound": "exponentials, logarithms and square roots are busy",
    "latency": "too little work is in flight to hide the time of each step",
    "low_parallelism": "too few programs for the device's multiprocessors",
    "register_spill": "registers are spilled to local memory",
    "occupancy_limited": "registers or shared memory let too few warps reside at once",
    "divergence_or_masking": "many lanes of executed instructions are masked out",
    "launch_overhead": "many short kernels, each of which costs its launch",
    "host_overhead": "the GPU waits for Python and the CPU",
    "algorithmic": "more arithmetic is done than the result needs",
    "at_bound": "near the speed of light: only another algorithm or fewer bytes help",
}

#: Role of a recipe's knob (kmem.recipes.Role) -> what there is more of when the knob goes up.
KNOB_ROLES: dict[str, str] = {
    "tile": "results or elements of a row that a program holds at once",
    "rows": "rows, or rows of results, that a program makes",
    "depth": "elements of the summed axis that a step loads",
    "split": "programs that share one result or one row",
    "warps": "warps of a program",
    "stages": "steps whose loads are under way at once",
    "vector": "neighbouring bytes that one load of a thread takes",
    "eviction": "loads of what is read once are marked to leave the cache first",
    "residency": "what is read twice stays nearer: DRAM, L2, registers of several programs, of one",
    "exchange": "values of neighbours come from registers instead of loads of their own",
    "fusion": "work is done inside the main kernel instead of in launches of its own",
    "layout": "tensors are put into the layout that the library computes in",
    "grouping": "tiles that run side by side share operands in L2",
    "copying": "operands come in boxes that the hardware addresses, not by addresses of threads",
    "persistence": "programs that walk over several tiles; 0: a program for each",
    "search": "the library's algorithms are measured instead of guessed",
    "precision": "bits of each product",
}

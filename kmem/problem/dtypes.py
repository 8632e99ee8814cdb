"""The dtypes that emitted kernels load, by torch's names without the `torch.`."""

#: What kernels compute on, in fp32.
FLOATS = ("float32", "float16", "bfloat16")
#: What kernels can load and store: floats, masks and indices.
LOADABLE = (*FLOATS, "bool", "int64")

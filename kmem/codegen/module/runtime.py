"""What an emitted module needs beside its kernels: launches by handle, parts of scratch, weights.

Each text stands in a module that uses it. `STAGED` keeps what launches read in the place of
parameters, and decides when it has to be made anew.
"""

RUNTIME = '''\
def _key(*tensors):
    """What compiled kernels are specialised to: the device, and the dtype of each tensor.

    None where a launch has to go through the compiler: in the interpreter, without a device, and
    for a tensor that does not start at a multiple of 16 bytes.
    """
    if _INTERPRETED:
        return None
    places = 0
    for tensor in tensors:
        places |= tensor.data_ptr()
    if places & 15 or not places:
        return None
    return (triton.runtime.driver.active.get_current_device(), *[item.dtype for item in tensors])


class _Launch:
    """A kernel over a grid; the first launch compiles it, later ones go through its handle.

    A handle is given addresses: of a tensor it would ask the driver where it lies.
    """

    def __init__(self, kernel, grid, **options):
        self.kernel, self.grid, self.options = kernel, grid, options
        self.sizes = (*grid, 1, 1)[:3]
        self.handles = {}

    def __call__(self, key, *arguments):
        handle = self.handles.get(key)
        if handle is None:
            handle = self.kernel[self.grid](*arguments, **self.options)
            if key is not None:
                self.handles[key] = handle
        else:
            stream = triton.runtime.driver.active.get_current_stream(key[0])
            function, metadata = handle.function, handle.packed_metadata
            given = [each.data_ptr() if hasattr(each, "data_ptr") else each for each in arguments]
            handle.run(*self.sizes, stream, function, metadata, None, None, None, *given)
'''

SCRATCH = '''\
class _Part:
    """A part of scratch memory, as launches read tensors."""

    def __init__(self, place, dtype):
        self.place, self.dtype = place, dtype

    def data_ptr(self):
        return self.place


def _parts(scratch, layout, key):
    """The parts of scratch memory; as tensors where a launch goes through the compiler."""
    if key is not None:
        base = scratch.data_ptr()
        return [_Part(base + start, dtype) for start, _, dtype in layout]
    return [scratch[start:end].view(dtype) for start, end, dtype in layout]
'''

STAGED = '''\
class _Staged:
    """What launches read in the place of parameters: made once, and anew when one has changed.

    A parameter is known by its address, version, strides and type, and is taken for changed once a
    gradient reaches it: fused optimizers leave the version as it is. What changes it in place
    through `.data` leaves no trace either: call `forget` then. A CUDA graph replays with what was
    staged when it was captured; the next call outside of it stages into the same memory.
    """

    def __init__(self):
        self.kept = {}  # by device: the state of the parameters, themselves, what was made of them
        self.hooks = []

    def __getstate__(self):
        return {"kept": {}, "hooks": []}  # a copy of a module stages its own parameters

    def __call__(self, *parameters):
        try:
            state = [(p.data_ptr(), p._version, p.stride(), p.dtype) for p in parameters]
        except RuntimeError:  # made in inference mode: a change leaves no trace
            return _stage(*parameters)
        kept = self.kept.get(parameters[0].device)
        if kept is not None and kept[0] == state:
            return kept[2]
        return self.make(state, parameters)

    def make(self, state, parameters):
        device = parameters[0].device
        on_gpu = device.type == "cuda" and not _INTERPRETED
        with torch.inference_mode(False), torch.no_grad():
            made = _stage(*parameters)
            if on_gpu and torch.cuda.is_current_stream_capturing():
                return made  # it has no values before the graph runs
            if device in self.kept:  # where a CUDA graph reads it
                kept = self.kept[device][2]
                for old, new in zip(kept, made, strict=True):
                    for place, value in zip(old, new, strict=True):
                        place.copy_(value)
                made = kept
            if on_gpu:  # the next call may be on another stream
                torch.cuda.current_stream(device).synchronize()
            held = [p.detach() for p in parameters]  # no other tensor comes to their addresses
        leaves = [p for p in parameters if p.is_leaf]
        if any(p.grad is not None for p in leaves):
            state = None  # an optimizer may change them at any time
        self.kept[device] = (state, held, made)
        for hook in self.hooks:
            hook.remove()
        self.hooks = [
            p.register_post_accumulate_grad_hook(self.forget) for p in leaves if p.requires_grad
        ]
        return made

    def forget(self, parameter=None):
        """Have the next call stage anew."""
        self.kept = {device: (None, *rest) for device, (_, *rest) in self.kept.items()}
'''

"""Winners as definitions, solutions and traces of FlashInfer-Bench (schema of version 0.1.2).

    DIR/definitions/kmem/<name>.json      what is computed, with its reference
    DIR/solutions/kmem/<name>/<name>.json  the kernel
    DIR/workloads/kmem/<name>.jsonl       the sizes
    DIR/traces/kmem/<name>.jsonl          what was measured

A definition's inputs are the tensors of a forward, then the parameters and buffers that it reads.
All axes are constant, for the kernel is for these sizes. A kernel whose time is an estimate has no
trace: nothing was measured.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kmem.deploy.entries import Draft, draft_entries
from kmem.deploy.package import refuse_foreign, replace_directory
from kmem.errors import OutputError
from kmem.measure.bundle import Bundle, read_bundle
from kmem.run.report.result import Result

_AUTHOR = "kmem"
#: The dtypes of the schema that torch calls so too.
_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool")

#: A module called as a function of its inputs and its state.
_RUN = '''

_known = None


def run({names}):
    """{what} for these inputs and this state, which the module keeps under its own names."""
    global _known
    if _known is None:
        with torch.device("meta"):
            _known = {kind}(*{init}).train({training})
    state = {{{state}}}
    with torch.no_grad():
        found = torch.func.functional_call(_known, state, ({inputs}))
    return {returned}
'''


def export_flashinfer(
    results: Sequence[Result], directory: Path, *, force: bool = False
) -> tuple[str, ...]:
    """Write the winners of runs as a data set that FlashInfer-Bench reads; returns their names.

    Raises OutputError: if a winner cannot be shipped or said in the schema, or the directory is in
    use.
    """
    refuse_foreign(directory, force=force, marks=("definitions", "solutions"))
    files: dict[str, str] = {}
    drafts = draft_entries(results)
    for result, draft in zip(results, drafts, strict=True):
        name = draft.data["name"]
        bundle = read_bundle(result.evidence_path)
        files[f"definitions/{_AUTHOR}/{name}.json"] = _dump(_definition(draft, bundle))
        files[f"solutions/{_AUTHOR}/{name}/{_solution_name(draft)}.json"] = _dump(_solution(draft))
        workload = {"definition": name, "workload": _workload(draft)}
        files[f"workloads/{_AUTHOR}/{name}.jsonl"] = json.dumps(workload) + "\n"
        if not draft.data["timing"]["estimated"]:
            trace = workload | {
                "solution": _solution_name(draft),
                "evaluation": _evaluation(draft, bundle),
            }
            files[f"traces/{_AUTHOR}/{name}.jsonl"] = json.dumps(trace) + "\n"
    replace_directory(directory, files)
    return tuple(draft.data["name"] for draft in drafts)


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1) + "\n"


def _solution_name(draft: Draft) -> str:
    return f"{_AUTHOR}_{draft.data['name']}_{draft.data['kernel_sha256'][:12]}"


def _tensors(draft: Draft) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each tensor that `run` takes, by its name: inputs, then state."""
    for place, each in enumerate(draft.data["inputs"]):
        if "shape" in each:
            yield f"input{place}", each
    for place, each in enumerate(draft.data["state"]):
        yield f"state{place}", each


def _outputs(draft: Draft) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, each in enumerate(draft.data["outputs"]):
        yield f"output{place}", each


def _definition(draft: Draft, bundle: Bundle) -> dict[str, Any]:
    sizes = sorted(
        {size for _, each in (*_tensors(draft), *_outputs(draft)) for size in each["shape"]}
    )
    return {
        "name": draft.data["name"],
        "op_type": _AUTHOR,
        "axes": {f"n{size}": {"type": "const", "value": size} for size in sizes},
        "inputs": {name: _spec(each, draft) for name, each in _tensors(draft)},
        "outputs": {name: _spec(each, draft) for name, each in _outputs(draft)},
        "reference": bundle.problem.source + _run(draft, "Model", "What is computed"),
        "tags": [f"author:{_AUTHOR}", f"precision:{draft.data['precision']}"],
        "description": f"{bundle.problem.name}, for inputs with strides "
        f"{[each['stride'] for each in draft.data['inputs'] if 'shape' in each]}",
    }


def _spec(tensor: dict[str, Any], draft: Draft) -> dict[str, Any]:
    if tensor["dtype"] not in _DTYPES:
        raise OutputError(
            f"{draft.data['name']} cannot be said for FlashInfer-Bench: it has a tensor of "
            f"{tensor['dtype']}; export it as package or hf"
        )
    return {"shape": [f"n{size}" for size in tensor["shape"]], "dtype": tensor["dtype"]}


def _run(draft: Draft, kind: str, what: str) -> str:
    names = [name for name, _ in _tensors(draft)]
    state = ", ".join(
        f"{each['name']!r}: state{place}" for place, each in enumerate(draft.data["state"])
    )
    inputs = "".join(
        f"input{place}, " if "shape" in each else f"{each['value']!r}, "
        for place, each in enumerate(draft.data["inputs"])
    )
    is_wrapped = draft.data["returns_tuple"] and len(draft.data["outputs"]) == 1
    return _RUN.format(
        names=", ".join(names),
        what=what,
        kind=kind,
        init=draft.data["init"],
        training=draft.data["training"],
        state=state,
        inputs=inputs.rstrip(),
        returned="found[0]" if is_wrapped else "found",
    )


def _solution(draft: Draft) -> dict[str, Any]:
    text = draft.kernel + _run(draft, "ModelNew", "What the kernels compute")
    return {
        "name": _solution_name(draft),
        "definition": draft.data["name"],
        "author": _AUTHOR,
        "spec": {
            "language": "triton",
            "target_hardware": [draft.data["device"]],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": text}],
        "description": f"Found and verified by kmem, run {draft.data['run']}",
    }


def _workload(draft: Draft) -> dict[str, Any]:
    return {
        "axes": {},
        "inputs": {name: {"type": "random"} for name, _ in _tensors(draft)},
        "uuid": draft.data["evidence_sha256"][:32],
    }


def _evaluation(draft: Draft, bundle: Bundle) -> dict[str, Any]:
    timing, accuracy = draft.data["timing"], draft.data["accuracy"]
    eager_ms = timing["baselines_ms"].get("eager", min(timing["baselines_ms"].values(), default=0))
    return {
        "status": "PASSED",
        "environment": {
            "hardware": draft.data["device"].replace(" ", "_"),
            "libs": {name: str(value) for name, value in draft.data["versions"].items()},
        },
        "timestamp": bundle.created_at,
        "log": f"kmem verify repeats it from the evidence {draft.data['evidence_sha256']}",
        "correctness": {
            "max_relative_error": accuracy["relative_error"],
            "max_absolute_error": 0.0,
            "extra": {
                "relative_to": "float64, by the norm of an output, of the worst family of inputs",
                "absolute_error": "not recorded",
                "allowed": accuracy["allowed_error"],
                "families": accuracy["families"],
            },
        },
        "performance": {
            "latency_ms": timing["latency_ms"],
            "reference_latency_ms": eager_ms,
            "speedup_factor": eager_ms / timing["latency_ms"],
        },
    }

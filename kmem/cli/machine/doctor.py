"""`kmem doctor`: what works on this machine, and the remedy for what does not."""

import json
from dataclasses import asdict
from functools import partial

import click

from kmem.cli.options.executor import ExecutorOptions
from kmem.cli.options.records import takes
from kmem.plugins import Registry
from kmem.records import Device
from kmem.serialize import to_data


@click.command()
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: checks and the device with its ceilings.",
)
@click.option(
    "--measure/--no-measure",
    default=True,
    show_default=True,
    help="Measure the ceilings of the GPU and keep them in the database (a minute).",
)
@takes(ExecutorOptions)
@click.pass_obj
def doctor(
    registry: Registry | None, as_json: bool, measure: bool, options: ExecutorOptions
) -> None:
    """Report what works on this machine, and measure the GPU's ceilings.

    Checked are the GPU, versions, profilers, offline parts, the database, and which plugins and
    skills are broken and left out. Always exits 0; what is missing is said with its remedy.

    With --executor it shows the machines of that cluster instead: cores, GPUs, versions, and what
    is not everywhere as it is on most of them.
    """
    if options.executor != "local":
        from kmem.cli.actions.cluster import show_cluster

        show_cluster(registry or Registry(), options, as_json=as_json)
        return
    from kmem.cli.actions.doctor import check_machine  # what it checks with is half of kmem

    device, checks = check_machine(
        registry or Registry(), measure=measure, announce=partial(click.echo, err=True)
    )
    if as_json:
        data = {
            "checks": [asdict(check) for check in checks],
            "device": to_data(device) if device is not None else None,
        }
        click.echo(json.dumps(data))
        return
    for check in checks:
        mark = {True: "ok  ", False: "LACK", None: "-   "}[check.ok]
        click.echo(f"{mark} {check.name:12} {check.detail}")
        if check.remedy:
            click.echo(f"{'':17} remedy: {check.remedy}")
    if device is not None:
        _print_ceilings(device)


def _print_ceilings(device: Device) -> None:
    click.echo(f"ceilings ({device.source}):")
    copy, read = device.dram_bytes_per_s / 1e12, device.read_bytes_per_s / 1e12
    click.echo(
        f"  copy {copy:.2f} TB/s, read {read:.2f} TB/s, launch {1e3 * device.launch_ms:.2f} us"
    )
    rates = ", ".join(
        f"{unit} {rate / 1e12:.1f}" for unit, rate in sorted(device.peak_flops_per_s.items())
    )
    click.echo(f"  {rates} TFLOP/s (special: 1e12 operations/s)")

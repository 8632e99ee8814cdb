"""Which GPU this is, in what state, and how it differs from another.

Figures of one bench are only of one kind if its cards are: another name, another version of what
compiles, or another clock makes a card unfit. What passes, such as heat, is only marked.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata

_QUERY = (
    "uuid",
    "name",
    "driver_version",
    "clocks.max.sm",
    "power.limit",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)
_TIMEOUT_S = 30.0
#: Highest clock, power limit and measured rates may differ by this part of the reference's.
TOLERANCE = 0.03
#: Above this a card lowers its clock sooner or later. Source: H100 and H200 slow down at 87 C.
_HOT_C = 84.0
#: Of the reasons for a lower clock those that a measurement suffers from: power (bit 2), hardware
#: slowdown (3, 6, 7), heat (5). Source: nvml.h, nvmlClocksEventReasons.
_SLOWED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
#: What has to be the same everywhere, as packages are called.
_PACKAGES = ("kmem", "torch", "triton")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as it was found, or with empty `uuid` a machine without one."""

    host: str
    uuid: str = ""
    name: str = ""
    driver: str = ""
    max_clock_mhz: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: float = 0.0
    slowed: bool = False
    others: int = 0  # processes that compute on it
    versions: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """The card in a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """The card of a line. Raises ValueError, KeyError or TypeError if it is none."""
        data = json.loads(text)
        versions = tuple((str(name), str(version)) for name, version in data.pop("versions"))
        return cls(**data, versions=versions)


def read_card(gpu: str | None = None) -> Card:
    """The card that this process may use, as nvidia-smi sees it.

    Args:
        gpu: as CUDA_VISIBLE_DEVICES calls it; None: the first of those.
    """
    versions = tuple((name, _version(name)) for name in _PACKAGES)
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if gpu is None else gpu
    first = named.split(",")[0]
    if not first or shutil.which("nvidia-smi") is None:
        return Card(socket.gethostname(), versions=versions)
    found = _ask("--query-gpu=" + ",".join(_QUERY), first)
    apps = _ask("--query-compute-apps=pid", first)
    return read_answer(found, apps, versions)


def read_answer(found: str, apps: str, versions: tuple[tuple[str, str], ...]) -> Card:
    """The card of nvidia-smi's answers, as CSV without header and units."""
    values = [value.strip() for value in found.strip().split("\n")[0].split(",")]
    if len(values) != len(_QUERY):
        return Card(socket.gethostname(), versions=versions)
    reasons = int(values[6], 16) if values[6].startswith("0x") else 0
    others = len([line for line in apps.splitlines() if line.strip().isdigit()])
    return Card(
        socket.gethostname(),
        *values[:3],
        *(_number(value) for value in values[3:6]),
        bool(reasons & _SLOWED),
        others,
        versions,
    )


def look_around(gpus: int) -> dict[str, str]:
    """Versions and cards of the machine that runs this, by name."""
    cards = [read_card(str(number)) for number in range(gpus)]
    versions = {name: _version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **versions} | {
        f"gpu {number}": (
            f"{card.name}, driver {card.driver}, {card.max_clock_mhz:g} MHz, "
            f"{card.power_limit_w:g} W"
            if card.name
            else "not seen by nvidia-smi"
        )
        for number, card in enumerate(cards)
    }


def unfit_for(card: Card, reference: Card) -> list[str]:
    """Why figures of a card do not belong to those of another; empty if they do."""
    reasons = []
    if card.name != reference.name:
        reasons.append(f"it is a {card.name or 'machine without a GPU'}, not a {reference.name}")
    theirs = dict(reference.versions)
    reasons += [
        f"{name} {version}, not {theirs[name]}"
        for name, version in card.versions
        if theirs.get(name, version) != version
    ]
    for what, ours, other in (
        ("highest clock", card.max_clock_mhz, reference.max_clock_mhz),
        ("power limit", card.power_limit_w, reference.power_limit_w),
    ):
        if other and abs(ours / other - 1) > TOLERANCE:
            reasons.append(f"{what} {ours:g}, not {other:g}")
    return reasons


def marks_of(card: Card, reference: Card) -> list[str]:
    """What else is to be known of figures of a card; empty if nothing is."""
    marks = []
    if card.driver != reference.driver:
        marks.append(f"driver {card.driver}, others {reference.driver}")
    if card.temperature_c >= _HOT_C:
        marks.append(f"{card.temperature_c:g} degrees")
    if card.slowed:
        marks.append("its clock is lowered for power or heat")
    if card.others:
        marks.append(f"{card.others} processes of others compute on it")
    return marks


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # [N/A], as for the power limit of a part of a card
        return 0.0


def _ask(query: str, gpu: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", gpu],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""

"""What was measured about a device: its ceilings, and how fast unmodified modules run on it."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from kmem.memory.storage import Tables
from kmem.records import Baseline, Contract, Device, Precision
from kmem.serialize import from_json, to_json


class Devices(Tables):
    """`memory.devices`: ceilings of devices and baselines of problems.

    `versions` maps a component (torch, triton, driver) to its version.
    """

    def put_baselines(
        self,
        problem_hash: str,
        workload: str,
        device: str,
        contract: Contract,
        versions: Mapping[str, str],
        baselines: Sequence[Baseline],
    ) -> None:
        """Keep how fast the module itself runs; the same names again are replaced."""
        key = _baseline_key(problem_hash, workload, device, contract, versions)
        with self._storage.write() as connection:
            connection.executemany(
                """
                insert or replace into baselines (
                    problem_hash, workload, device, contract, versions, name, record
                )
                values (?, ?, ?, ?, ?, ?, ?)
                """,
                [[*key, baseline.name, to_json(baseline)] for baseline in baselines],
            )

    def baselines(
        self,
        problem_hash: str,
        workload: str,
        device: str,
        contract: Contract,
        versions: Mapping[str, str],
    ) -> tuple[Baseline, ...]:
        """The baselines kept for exactly these versions, by name; empty if there are none."""
        rows = self._storage.read(
            """
            select record from baselines
            where problem_hash = ?
              and workload = ?
              and device = ?
              and contract = ?
              and versions = ?
            order by name
            """,
            _baseline_key(problem_hash, workload, device, contract, versions),
        )
        return tuple(from_json(Baseline, row["record"]) for row in rows)

    def latest_baselines(
        self, problem_hash: str, device: str, precision: Precision
    ) -> tuple[Baseline, ...]:
        """The baselines kept last of a problem's full workload, whatever the versions; by name."""
        contract = to_json(Contract(precision))  # as run/evaluation/baselines.py keeps them
        rows = self._storage.read(
            """
            select name, record, max(rowid) from baselines
            where problem_hash = ? and workload = 'full' and device = ? and contract = ?
            group by name
            order by name
            """,
            [problem_hash, device, contract],
        )
        return tuple(from_json(Baseline, row["record"]) for row in rows)

    def put_ceilings(self, device: Device, versions: Mapping[str, str]) -> None:
        """Keep a device's measured ceilings under its name and these versions.

        What was measured with the same versions before is replaced.
        """
        with self._storage.write() as connection:
            connection.execute(
                """
                insert or replace into ceilings (device, versions, record, measured_at)
                values (?, ?, ?, ?)
                """,
                [
                    device.name,
                    _canonical(versions),
                    to_json(device),
                    datetime.now(UTC).isoformat(timespec="microseconds"),
                ],
            )

    def ceilings(
        self, device_name: str, versions: Mapping[str, str] | None = None
    ) -> Device | None:
        """The ceilings measured last for a device (with these versions, if given).

        None if nobody measured them.
        """
        known_with = _canonical(versions) if versions is not None else None
        rows = self._storage.read(
            """
            select record from ceilings
            where device = ? and (? is null or versions = ?)
            order by measured_at desc, rowid desc
            limit 1
            """,
            [device_name, known_with, known_with],
        )
        return from_json(Device, rows[0]["record"]) if rows else None


def _canonical(versions: Mapping[str, str]) -> str:
    return json.dumps(dict(versions), sort_keys=True)


def _baseline_key(
    problem_hash: str, workload: str, device: str, contract: Contract, versions: Mapping[str, str]
) -> list[str]:
    return [problem_hash, workload, device, to_json(contract), _canonical(versions)]

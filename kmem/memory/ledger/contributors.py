"""Who measured what: this memory's own name, the trust in each origin, and its outcomes' licence.

An outcome's `origin` is the contributor that it says measured it. It is part of the outcome's hash,
so nobody changes it on the way; but whoever writes a file may write any name into it. So who wrote
a record is decided where it enters the ledger, and kept beside it as its `writer`: what this memory
records itself is its own, and what is imported never is, whatever it says.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from kmem.errors import MemoryStoreError
from kmem.memory.ledger.posteriors import Trust
from kmem.memory.storage import Tables

#: Before this memory's own name: who wrote an imported record that claims to be of this memory.
_CLAIMS_TO_BE = "claims to be "
OWN_TRUST = 1.0
#: Somebody else's measurements, on a machine nobody here has seen, count half until a level is set.
OTHERS_TRUST = 0.5


@dataclass(frozen=True, slots=True)
class Contribution:
    """What came from one origin: how many outcomes, measured on which devices, the last when."""

    outcomes: int
    devices: list[str]
    last: str  # a date


class Contributors(Tables):
    """`memory.contributors`: origins of outcomes."""

    _own_name: str | None = None

    @property
    def own_name(self) -> str:
        """The name that outcomes measured here carry.

        It is random, made once per database, and says nothing about a person or machine.
        """
        if self._own_name is None:
            rows = self._storage.read("select name from contributor")
            if not rows:
                # two processes may get here: the first name stays
                with self._storage.write() as connection:
                    connection.execute(
                        "insert or ignore into contributor (id, name) values (1, ?)",
                        [f"kmem-{uuid.uuid4().hex[:12]}"],
                    )
                rows = self._storage.read("select name from contributor")
            self._own_name = str(rows[0]["name"])
        return self._own_name

    def trust(self) -> Trust:
        """How much each origin's outcomes count.

        Unless set, this memory's own count OWN_TRUST and those of others OTHERS_TRUST.
        """
        return Trust({self.own_name: OWN_TRUST} | self._trusted(), OTHERS_TRUST)

    def writer_of_imported(self, origin: str) -> str:
        """Who counts as the writer of an imported record: the one it names, but never this memory.

        A copy of this database that went on elsewhere, and a forger, write this memory's name.
        """
        return _CLAIMS_TO_BE + origin if origin == self.own_name else origin

    def set_trust(self, origin: str, level: float) -> None:
        """Let an origin's outcomes count `level` (0: not at all, 1: as if measured here).

        Raises MemoryStoreError outside 0 to 1.
        """
        if not 0.0 <= level <= 1.0:
            raise MemoryStoreError(
                f"Trust in '{origin}' cannot be {level:g}; give a number from 0 to 1"
            )
        with self._storage.write() as connection:
            connection.execute(
                "insert or replace into trust (origin, level) values (?, ?)", [origin, level]
            )

    def origins(self) -> dict[str, int]:
        """How many outcomes came from each origin, by name."""
        rows = self._storage.read(
            """
            select writer as origin, count(*) as outcomes
            from outcomes
            group by 1
            order by 1
            """
        )
        return {str(row["origin"]): int(row["outcomes"]) for row in rows}

    def names(self) -> dict[str, str]:
        """Origin -> what the contributor is called, where that is known."""
        rows = self._storage.read("select origin, name from names order by origin")
        return {str(row["origin"]): str(row["name"]) for row in rows}

    def set_name(self, name: str) -> None:
        """Call this memory's own contributor so."""
        self._put_names({self.own_name: name})

    def keep_names(self, names: Mapping[str, str]) -> None:
        """Keep what others are called; nobody else names this memory."""
        self._put_names({origin: name for origin, name in names.items() if origin != self.own_name})

    def _put_names(self, names: Mapping[str, str]) -> None:
        with self._storage.write() as connection:
            connection.executemany(
                "insert or replace into names (origin, name) values (?, ?)", list(names.items())
            )

    def resolve(self, name: str) -> str:
        """The origin that is called so, or whose own name begins so.

        Raises MemoryStoreError if none or several are.
        """
        known = {*self.origins(), *self.names(), self.own_name} | set(self._trusted())
        if name in known:
            return name
        called = {origin for origin, called in self.names().items() if called == name}
        found = sorted(called or {origin for origin in known if name and origin.startswith(name)})
        if len(found) == 1:
            return found[0]
        if found:
            raise MemoryStoreError(f"'{name}' may be {' or '.join(found)}; give more of it")
        raise MemoryStoreError(
            f"Nobody here is called '{name}'; `kmem memory trust` lists whose outcomes are here"
        )

    def _trusted(self) -> dict[str, float]:
        return {
            str(row["origin"]): float(row["level"])
            for row in self._storage.read("select origin, level from trust order by origin")
        }

    def contributions(self) -> dict[str, Contribution]:
        """What came from each origin."""
        rows = self._storage.read(
            """
            select
                writer as origin,
                count(*) as outcomes,
                group_concat(distinct json_extract(record, '$.device')) as devices,
                max(created_at) as last
            from outcomes
            group by 1
            """
        )
        return {
            str(row["origin"]): Contribution(
                int(row["outcomes"]), str(row["devices"]).split(","), str(row["last"])[:10]
            )
            for row in rows
        }

    def licences(self) -> dict[str, str]:
        """Origin -> the licence of its outcomes and kernels, where one was stated."""
        rows = self._storage.read("select origin, licence from licences order by origin")
        return {str(row["origin"]): str(row["licence"]) for row in rows}

    def keep_licences(self, licences: Mapping[str, str]) -> None:
        """Keep the licences that came with outcomes; the first that an origin stated stays.

        Nobody else states that of this memory's own.
        """
        self._put_licences(
            {origin: licence for origin, licence in licences.items() if origin != self.own_name}
        )

    def _put_licences(self, licences: Mapping[str, str]) -> None:
        with self._storage.write() as connection:
            connection.executemany(
                "insert or ignore into licences (origin, licence) values (?, ?)",
                list(licences.items()),
            )

    def set_licence(self, origin: str, licence: str) -> None:
        """State the licence of an origin's outcomes.

        Raises MemoryStoreError if another was stated before.
        """
        self._put_licences({origin: licence})
        stated = self.licences()[origin]
        if stated != licence:
            raise MemoryStoreError(
                f"Outcomes of '{origin}' are under {stated} already, not {licence}; "
                "export without --licence"
            )

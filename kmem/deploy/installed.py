"""Packages that `kmem install` has put on this machine, beside the database."""

from pathlib import Path

from kmem.deploy.package import Package, find_package
from kmem.deploy.shipped.table import Entry
from kmem.memory.location import default_db_path


def installed_place() -> Path:
    """The directory of installed packages, which may not exist."""
    return default_db_path().parent / "packages"


def installed_packages() -> tuple[Package, ...]:
    """What is installed, by name.

    Raises OutputError: if a package is damaged.
    """
    place = installed_place()
    found = (find_package(each) for each in sorted(place.iterdir())) if place.is_dir() else ()
    return tuple(package for package in found if package is not None)


def installed_entries() -> tuple[Entry, ...]:
    """The entries of all installed packages."""
    return tuple(entry for package in installed_packages() for entry in package.entries)

"""A table of results: JSON for machines, Markdown for people, both with what made them.

A table is a plain dictionary: ``name`` (of the files), ``title``, ``command``, ``protocol`` (sentences), ``columns``
(key → heading), ``rows`` (dictionaries), ``notes`` (sentences), ``environment`` and what else a bench wants to keep.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import txl_ts

LIBRARIES = ("numpy", "torch", "pandas", "polars", "narwhals", "scikit-learn")


def environment() -> dict[str, Any]:
    """Versions and the class of the machine: enough to explain a time, nothing that names the machine or its owner.

    Returns
    -------
    dict
        ``versions`` (library → version), ``cpu`` (model), ``n_cpus`` (that this process may use), ``n_threads``
        (torch's, None before torch is loaded), ``system`` (such as ``"Linux x86_64"``).
    """
    versions = {"txl-ts": txl_ts.__version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            versions[library] = "not installed"
    torch = sys.modules.get("torch")
    return {
        "versions": versions,
        "cpu": _cpu_model(),
        "n_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "n_threads": None if torch is None else torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def markdown(table: Mapping[str, Any]) -> str:
    """Render a table.

    Parameters
    ----------
    table : mapping
        As this module describes it.

    Returns
    -------
    str
        Markdown that ends with a newline. Missing cells are shown as ``–``.
    """
    columns, here = table["columns"], table["environment"]
    cells = [[_cell(key, row.get(key)) for key in columns] for row in table["rows"]]
    numeric = [all(isinstance(row.get(key), int | float | None) for row in table["rows"]) for key in columns]
    lines = [f"# {table['title']}", "", f"`{table['command']}`", "", *table["protocol"], ""]
    lines += [_line(list(columns.values())), _line(["---:" if right else "---" for right in numeric])]
    lines += [_line(row) for row in cells]
    lines += ["", *(f"- {note}" for note in table["notes"])] if table["notes"] else []
    versions = ", ".join(f"{library} {version}" for library, version in here["versions"].items())
    threads = f", {here['n_threads']} torch threads" if here["n_threads"] else ""
    lines += [
        "",
        f"Machine: {here['n_cpus']} CPUs, {here['cpu']}, {here['system']}{threads}. Versions: {versions}.",
        "",
    ]
    return "\n".join(lines)


def still_missing(n_missing: int, *, of: int) -> list[str]:
    """Give the note of a table whose fits are not all there yet."""
    return [f"{n_missing} of {of} fits are missing; seeds are counted per row."] if n_missing else []


def write(table: Mapping[str, Any], *, out: str | PathLike[str]) -> tuple[Path, Path]:
    """Write ``<name>.json`` and ``<name>.md``; a half-written file never replaces a whole one.

    Parameters
    ----------
    table : mapping
        As this module describes it.
    out : path
        Folder, made if it is not there.

    Returns
    -------
    tuple of Path
        The two files.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(table), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return (
        _replace(folder / f"{table['name']}.json", text),
        _replace(folder / f"{table['name']}.md", markdown(table)),
    )


def _replace(path: Path, text: str) -> Path:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return path


def _plain(value: Any) -> Any:
    """JSON has no NaN: a number that is not there is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(key: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.1f}" if key.endswith("_s") else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cpu_model() -> str:
    """The processor's model name; Linux tells it in one file only, and elsewhere ``platform`` knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

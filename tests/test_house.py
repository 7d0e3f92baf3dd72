"""Rules of the house that no linter knows."""

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import txl_ts

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = sorted([*ROOT.glob("txl_ts/**/*.py"), *ROOT.glob("adapters/**/*.py")])
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])

# ------------------------------------------------------------------------------------------------------- names of files


def test_every_file_is_named_after_what_it_holds():
    names_of_nothing = {"common", "helper", "helpers", "misc", "util", "utils"}
    folders = ["txl_ts", "adapters", "tests", "benchmarks", "examples"]
    files = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if {path.stem, path.parent.name} & names_of_nothing] == []


# --------------------------------------------------------------------------------------------------------------- floors

LIGHT_ROOMS = [
    *("config", "forms", "instants", "spec", "state", "store", "stream", "calibration", "wall_clock"),  # numpy only
    *("frames", "runtime"),  # no torch
    *("attention", "losses", "memory", "embeddings", "heads", "backbone", "model"),  # no dataframes
]


@pytest.mark.parametrize("room", [f"txl_ts.{room}" for room in LIGHT_ROOMS])
def test_a_room_that_must_stay_light_is_held_to_it_by_a_contract(room):
    if find_spec(room) is None:
        pytest.skip(f"{room} is not in this release")
    contracts = SETTINGS["tool"]["importlinter"]["contracts"]  # import-linter refuses a contract over a missing room
    held = {source for contract in contracts for source in contract.get("source_modules", [])}
    assert room in held, f"add {room} to the source_modules of a forbidden contract in pyproject.toml"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if ROOT / "txl_ts" in path.parents], ids=lambda path: path.name
)
def test_no_source_of_the_core_comes_in_through_the_front_door(path):
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "txl_ts"]
    names = {name.name for node in imports for name in node.names}
    # lint-imports does not follow the lazy names, so they could reach any floor.
    assert names & set(txl_ts.__all__) - {"__version__"} == set()


# ------------------------------------------------------------------------------- a file from a stranger can only fail

PICKLERS = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
RUNNERS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("torch", "save"), ("yaml", "load"), ("yaml", "unsafe_load")}
PICKLING_READERS = {"read_pickle", "to_pickle"}


def openings(tree: ast.AST) -> Iterator[str]:
    """Each expression of a parsed file through which a file could run code."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in PICKLERS)
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] in PICKLERS:
                    yield module
                yield from (f"{module}.{name.name}" for name in names if (module, name.name) in LOADERS)
            case ast.Call(func=ast.Name(id=name)) if name in RUNNERS:
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if (owner, attr) in LOADERS:
                yield f"{owner}.{attr}"
            case ast.Attribute(attr=attr) if attr in PICKLING_READERS:
                yield attr
            case ast.keyword(arg="allow_pickle", value=value) if not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                yield "allow_pickle"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_can_read_a_pickle_or_run_what_a_file_says(path):
    assert list(openings(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib.numpy_pickle import load", ["joblib.numpy_pickle"]),
        ("from torch import load", ["torch.load"]),
        ("torch.load(path, weights_only=True)", ["torch.load"]),
        ("yaml.load(text)", ["yaml.load"]),
        ("eval(text)", ["eval"]),
        ("np.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("pd.read_pickle(path)", ["read_pickle"]),
        ("network.eval(); re.compile('a'); np.load(path, allow_pickle=False)", []),
    ],
)
def test_the_search_for_openings_finds_a_planted_one(code, found):
    assert list(openings(ast.parse(code))) == found


# ----------------------------------------------------------------------------------------------------------- the pages


def commands() -> list[str]:
    """The command lines that the command-line program offers, such as ``txl-ts demo``."""
    typer = pytest.importorskip("typer", reason="the command line needs the extra `cli`")
    package = importlib.import_module("txl_ts.cli")
    below = [module.name for module in pkgutil.walk_packages(package.__path__, "txl_ts.cli.")]
    rooms = [package, *(importlib.import_module(name) for name in below if not name.endswith("__main__"))]
    apps = {id(value): value for room in rooms for value in vars(room).values() if isinstance(value, typer.Typer)}
    programs = [typer.main.get_command(app) for app in apps.values()]
    names = {name for program in programs for name in getattr(program, "commands", {})}
    return [f"txl-ts {name}" for name in sorted(names)]


@pytest.fixture(scope="module")
def pages() -> str:
    assert PAGES, "neither README.md nor docs/*.md is there"
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


@pytest.mark.parametrize("name", [name for name in txl_ts.__all__ if not name.startswith("_")])
def test_every_public_name_stands_in_a_page(name, pages):
    assert re.search(rf"\b{name}\b", pages), f"no page mentions {name}"


def test_every_command_stands_in_a_page(pages):
    offered = commands()
    assert offered, "txl_ts.cli offers no command"
    assert [command for command in offered if not re.search(rf"{command}\b", pages)] == []


def test_every_extra_that_a_message_or_a_page_names_exists():
    texts = [path.read_text(encoding="utf-8") for path in [*SOURCES, *PAGES]]
    named = {
        extra.strip()
        for text in texts
        for extras in re.findall(r"txl-ts\[([a-z, -]+)\]", text)
        for extra in extras.split(",")
    }
    assert named - set(SETTINGS["project"]["optional-dependencies"]) == set()


def test_a_version_that_a_page_states_is_the_version_of_the_package(pages):
    stated = set(re.findall(r"txl[-_]ts(?:==| v?| version )(\d+\.\d+\.\d+)", pages))
    assert stated <= {txl_ts.__version__}


def test_the_newest_entry_of_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == txl_ts.__version__

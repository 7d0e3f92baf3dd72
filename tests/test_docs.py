"""The pages run, and print what they say they print."""

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

import txl_ts
from txl_ts import calibration, errors, stream
from txl_ts.memory import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
API = ROOT / "docs" / "api.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<printed>.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_stands_below_it(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))  # a page may register its own
    names: dict[str, object] = {}
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    assert blocks, "a page starts with code that runs"
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(page), "exec"), names)
        if block["printed"] is not None:
            assert words(printed.getvalue()) == words(block["printed"])
            # Training sums in another order on another machine, and its last digits are not the reader's concern.
            assert numbers(printed.getvalue()) == pytest.approx(numbers(block["printed"]), rel=0.05)


def words(text: str) -> list[str]:
    """What is printed beside decimal numbers; whole numbers count as words."""
    return NUMBER.sub(" # ", text).split()


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_to_a_file_of_the_repository_leads_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_parameter_and_method_of_the_forecaster_stands_in_the_api_page():
    forecaster = txl_ts.TXLForecaster
    parameters = set(inspect.signature(forecaster.__init__).parameters) - {"self"}
    own = [vars(cls) for cls in forecaster.__mro__ if cls.__module__.startswith("txl_ts")]
    methods = {n for names in own for n, value in names.items() if callable(value) or isinstance(value, classmethod)}
    offered = parameters | {name for name in methods if not name.startswith("_")}
    page = API.read_text(encoding="utf-8")
    assert sorted(name for name in offered if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)) == []


def test_every_fitted_attribute_that_the_docstring_names_stands_in_the_api_page():
    doc = inspect.getdoc(txl_ts.TXLForecaster) or ""
    section = doc.partition("Attributes\n")[2].partition("Examples\n")[0]
    named = set(re.findall(r"^([a-z_, ]+_)(?: :|$)", section, re.MULTILINE))
    attributes = {name.strip() for names in named for name in names.split(",")}
    page = API.read_text(encoding="utf-8")
    assert attributes
    assert sorted(name for name in attributes if f"`{name}`" not in page) == []


@pytest.mark.parametrize("room", [stream, calibration])
def test_every_name_that_a_room_for_streams_offers_stands_in_the_api_page(room):
    page = API.read_text(encoding="utf-8")
    assert [name for name in room.__all__ if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)] == []


def test_every_error_and_warning_stands_in_the_api_page():
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    page = API.read_text(encoding="utf-8")
    assert [name for name in classes if f"`{name}`" not in page] == []

"""The command line, from arguments to exit codes."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from txl_ts import TxlError, __version__
from txl_ts.cli import main

pytest.importorskip("typer", reason="the command line needs the extra `cli`")
ROOT = Path(__file__).parents[1]


def call(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(args)
    return end.value.code or 0


def python(code: str, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


# ------------------------------------------------------------------------------------------------------------- the demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    for package in ("matplotlib", "bokeh_sampledata"):
        pytest.importorskip(package, reason="the demo needs the extra `demo`")
    folder = tmp_path_factory.mktemp("demo")
    return folder, python("from txl_ts.cli import main; main()", "demo", "--quick", folder=folder)


@pytest.fixture(scope="module")
def table(demo) -> dict[str, list[str]]:
    """Cells of the table by the label of their line; the last two of a line belong to the streams."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in demo[1].stdout.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == 3}


def number(cell: str) -> float:
    return float(re.sub(r"[^\d.e-]", "", cell))


def test_demo_ends_well_and_says_nothing_on_stderr(demo):
    assert (demo[1].returncode, demo[1].stderr) == (0, "")


def test_demo_prints_plain_lines_that_fit_a_narrow_window(demo):
    text = demo[1].stdout
    assert "\x1b" not in text
    assert "\r" not in text
    start = text.splitlines().index(next(line for line in text.splitlines() if line.startswith("---")))
    assert max(len(line) for line in text.splitlines()[start - 1 :]) <= 100


def test_demo_says_what_was_cleaned_and_what_was_not_used(demo):
    assert re.search(r"cleaned: [\d,]+ stamps were moved to the 5-minute grid", demo[1].stdout)
    assert re.search(r"cleaned: 1 row fell on taken stamps", demo[1].stdout)
    assert "unused: column 'isig' has no role." in demo[1].stdout


def test_demo_forecasts_one_stream_an_hour_and_the_other_a_day_ahead(table):
    assert table["forecast"] == ["1 h ahead", "24 h ahead"]


def test_demo_feeds_a_day_row_by_row(table):
    glucose, sea = table["rows fed one by one"]
    assert 200 < number(glucose) <= 288
    assert sea == "48"


def test_demo_ratios_are_those_of_its_errors(table):
    ours = [number(cell) for cell in table["mean absolute error: txl-ts"]]
    naive = [number(cell) for cell in table["last value"]]
    shown = [number(cell) for cell in table["txl-ts / last value"]]
    # Errors are printed to 4 digits, ratios to 3 decimals.
    assert shown == pytest.approx([a / b for a, b in zip(ours, naive, strict=True)], abs=2e-3)


def test_demo_gets_the_same_forecasts_row_by_row_and_in_one_pass(table):
    # float32 sums over another number of rows: the promise is 1e-5 in the lane's own deviations.
    assert all(number(cell) < 1e-5 for cell in table["largest difference, in deviations"])


def test_demo_gets_the_same_forecasts_from_the_exported_graph(table):
    glucose, sea = table["its largest difference, in deviations"]
    assert number(glucose) < 1e-5  # the same float32 sums in another order
    assert sea == "–"  # the quick round exports one model


def test_demo_state_keeps_to_the_budget(table):
    assert all(0 < number(cell) <= 128 for cell in table["state of a stream, KiB"])


def test_demo_writes_a_png_of_a_readable_size(demo):
    data = (demo[0] / "txl-ts-demo.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1000
    assert height > 700


def test_demo_judges_all_forecasters_on_the_cells_that_all_of_them_have():
    pytest.importorskip("matplotlib", reason="the demo needs the extra `demo`")
    from txl_ts.cli.trial import _errors

    y = np.array([[1.0, np.nan, 3.0]])
    errors = _errors(y, {"a": np.array([[2.0, 0.0, np.nan]]), "b": np.array([[1.0, 0.0, 9.0]])})
    assert errors == {"a": 1.0, "b": 0.0}


def test_demo_does_not_begin_when_the_picture_has_nowhere_to_go(capsys):
    assert call("demo", "--out", "/no/such/folder/x.png") == 2
    assert "there is no folder '/no/such/folder'" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["matplotlib", "bokeh_sampledata"])
def test_demo_without_its_packages_names_the_install_command(package, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert call("demo") == 2
    assert 'pip install "txl-ts[demo]"' in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- the rest


def test_help_lists_the_commands_without_colour(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in ("demo", "bench"))
    assert "\x1b" not in text


def test_version_is_that_of_the_package(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"txl-ts {__version__}\n"


def test_an_unknown_command_is_an_error_of_usage(capsys):
    assert call("fly") == 2
    assert "No such command 'fly'" in capsys.readouterr().err


def test_an_error_of_ours_is_one_message_without_a_traceback(capsys, tmp_path):
    assert call("bench", "ett", "--data", str(tmp_path), "--h", "96") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"Error: \S+ETTh1\.csv is not there\. Pass the folder [^\n]+\n", captured.err)


def test_traceback_shows_where_an_error_of_ours_was_raised(tmp_path):
    with pytest.raises(TxlError, match="is not there"):
        main(["--traceback", "bench", "ett", "--data", str(tmp_path)])


def test_numbers_that_are_none_are_told_with_an_example(capsys, tmp_path):
    assert call("bench", "ett", "--data", str(tmp_path), "--seeds", "0;1") == 2
    assert capsys.readouterr().err == (
        "Error: --seeds '0;1' must be whole numbers with commas between them, such as 96,192.\n"
    )


def test_a_bench_refuses_a_file_as_its_folder_before_it_begins(capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    assert call("bench", "m4", "--data", str(tmp_path), "--out", str(tmp_path / "taken")) == 2
    assert "is a file. Name a folder." in capsys.readouterr().err


def test_every_bench_is_a_command():
    from txl_ts.bench import BENCHES
    from txl_ts.cli.bench import bench_program

    assert {command.name for command in bench_program().registered_commands} == {
        name.replace("_", "-") for name in BENCHES
    }


def test_a_bench_prints_its_table_and_writes_it(shared_data, capsys, tmp_path):
    assert call(*f"bench m4 --data {shared_data} --group Weekly --baselines-only --out {tmp_path}".split()) == 0
    printed = capsys.readouterr().out
    written = (tmp_path / "m4-weekly.md").read_text(encoding="utf-8")
    assert printed.startswith(written)
    assert "`txl-ts bench m4 --data DIR --group Weekly --baselines-only`" in written
    assert (tmp_path / "m4-weekly.json").is_file()


def test_without_typer_the_install_command_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert call("--help") == 2
    assert 'pip install "txl-ts[cli]"' in capsys.readouterr().err


def test_the_door_of_the_command_line_loads_neither_typer_nor_torch(tmp_path):
    code = "import sys, txl_ts.cli; print([name for name in ('typer', 'torch', 'matplotlib') if name in sys.modules])"
    assert python(code, folder=tmp_path).stdout == "[]\n"


def test_every_command_and_option_stands_in_the_page():
    import typer

    from txl_ts.cli.program import app

    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    commands = {"": typer.main.get_command(app)}
    while groups := {name: one for name, one in commands.items() if hasattr(one, "commands")}:
        commands = {name: one for name, one in commands.items() if name not in groups}
        commands |= {f"{name} {k}".strip(): sub for name, group in groups.items() for k, sub in group.commands.items()}
    assert [name for name in commands if f"txl-ts {name}" not in page] == []
    options = {option for one in commands.values() for param in one.params for option in param.opts}
    long = {option for option in options if option.startswith("--")} - {"--help"}
    assert sorted(option for option in long if not re.search(rf"{option}\b(?!-)", page)) == []

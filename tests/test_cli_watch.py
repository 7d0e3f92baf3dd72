"""``txl-ts watch``: lines in, JSON lines out, each once, whatever happens in between."""

import json
from pathlib import Path

import pytest

from txl_ts.cli import main

pytest.importorskip("typer", reason="the command line needs the extra `cli`")
pytest.importorskip("onnxruntime", reason="a graph needs the extra `ort`")
ROOT = Path(__file__).parents[1]
GRAPH = str(ROOT / "tests" / "golden" / "0.1.0" / "graph.onnx")  # one channel, y, every hour


def call(*args) -> int:
    with pytest.raises(SystemExit) as end:
        main(["watch", GRAPH, *map(str, args)])
    return end.value.code or 0


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def hour(i):
    return f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00"


def wave(i):
    return round(20 + 5 * ((i % 24) / 12 - 1) ** 2 + 0.1 * (i * 7 % 11), 3)


def a_table(path, n=60, *, header="time,y", skip=()):
    rows = [f"{hour(i)},{wave(i)}" for i in range(n) if i not in skip]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    return a_table(tmp_path / "rows.csv")


@pytest.fixture
def said(table, tmp_path):
    """What is said about the table, in whatever form it comes."""
    assert call(table, "--out", tmp_path / "expected.jsonl") == 0
    return lines_of(tmp_path / "expected.jsonl")


@pytest.fixture(scope="module")
def forecaster_beside(tmp_path_factory):
    """A forecaster that reads a column of the past and one that is static."""
    from txl_ts import TXLForecaster

    pd = pytest.importorskip("pandas")
    ds = pd.date_range("2026-01-01", periods=120, freq="h")
    df = pd.DataFrame({"unique_id": "a", "ds": ds, "y": [wave(i) for i in range(120)], "temp": 1.0 * (ds.hour % 5)})
    path = tmp_path_factory.mktemp("beside") / "model.txl"
    sizes = {"h": 2, "patch_len": 4, "mem_len": 2, "lookback": 8, "d_model": 8, "n_layers": 1, "n_heads": 2}
    model = TXLForecaster(**sizes, freq="1h", max_epochs=0)
    static = pd.DataFrame({"unique_id": ["a"], "size": [2.0]})
    model.fit(df, hist_cols=["temp"], static_cols=["size"], static_df=static).save(path)
    return path


# --------------------------------------------------------------------------------------------------------------- lines


def test_a_row_has_stream_time_status_score_and_alerts(said):
    assert len(said) == 60
    assert list(said[0]) == ["stream", "seq", "time", "status", "score", "p_value", "alerts"]
    assert (said[0]["time"], said[0]["status"], said[0]["score"]) == ("2026-01-01T00:00:00", "warming_up", None)
    assert (said[59]["time"], said[59]["status"]) == ("2026-01-03T11:00:00", "ok")
    assert said[59]["score"] > 0


def test_the_rows_are_those_that_a_watch_in_python_gives(said, tmp_path):
    from txl_ts.runtime import StreamSession
    from txl_ts.stream import Intake, Watch

    watch = Watch(Intake(["y"], tick="1h", max_gap="10h"), StreamSession(GRAPH))
    found = [one for i in range(60) for one in watch.step({"stream": [("y", hour(i), wave(i))]})["stream"]]
    assert [line["score"] for line in said] == [None if one.score != one.score else one.score for one in found]
    assert [line["status"] for line in said] == [one.status for one in found]


FORMS = {
    "semicolons": lambda i: f"{hour(i)};{wave(i)}",
    "tags": lambda i: f"y,{hour(i)},{wave(i)}",
    "quotes": lambda i: f'"{hour(i)}","{wave(i)}","a, b"',
    "objects": lambda i: json.dumps({"time": hour(i), "y": wave(i)}),
    "nested objects": lambda i: json.dumps({"time": hour(i), "values": {"y": wave(i)}}),
    "tags as objects": lambda i: json.dumps({"value": wave(i), "tag": "y", "time": hour(i)}),
}
HEADERS = {"semicolons": "time;y", "tags": "tag,time,value", "quotes": "time,y,remark"}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_readings_gives_the_same_rows(form, said, tmp_path):
    path = tmp_path / "other.txt"
    header = [HEADERS[form]] if form in HEADERS else []
    path.write_text("\r\n".join([*header, *map(FORMS[form], range(60))]), encoding="utf-8")
    assert call(path, "--out", tmp_path / "out.jsonl") == 0
    assert lines_of(tmp_path / "out.jsonl") == said


def test_times_may_be_numbers_with_a_unit_or_text_in_a_format(said, tmp_path):
    start = 1_767_225_600  # 2026-01-01
    forms = {
        ("--time-unit", "s"): lambda i: str(start + 3600 * i),
        ("--time-unit", "ms"): lambda i: f"{start + 3600 * i}000.0",
        ("--time-format", "%d.%m.%y %H h"): lambda i: f"{1 + i // 24:02d}.01.26 {i % 24:02d} h",
    }
    for k, (options, time) in enumerate(forms.items()):
        path = tmp_path / f"{k}.csv"
        path.write_text("\n".join(["time,y", *(f"{time(i)},{wave(i)}" for i in range(60))]))
        assert call(path, *options, "--out", tmp_path / f"{k}.jsonl") == 0
        assert lines_of(tmp_path / f"{k}.jsonl") == said


def test_seconds_without_a_unit_are_not_taken_for_nanoseconds(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("time,y\n1767225600,1\n")
    assert call(tmp_path / "rows.csv", "--strict") == 2
    assert "line 2: time '1767225600' would be in January 1970" in capsys.readouterr().err


def test_times_with_an_offset_are_told_with_it_and_mixed_ones_are_refused(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("time,y\n2026-01-01T01:00+01:00,1\n2026-01-01T01:00Z,2\n2026-01-01T02:00,3\n")
    assert call(tmp_path / "rows.csv", "--out", tmp_path / "out.jsonl") == 0
    assert [line["time"] for line in lines_of(tmp_path / "out.jsonl")] == [
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T01:00:00+00:00",
    ]
    assert "line 4: StampError: time '2026-01-01T02:00:00' has no offset from UTC" in capsys.readouterr().err


def test_streams_side_by_side_are_told_apart_by_their_column(said, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(
        "\n".join(["pump,when,y", *(f"{pump},{hour(i)},{wave(i)}" for i in range(60) for pump in ("7", "a b"))])
    )
    for batch in (1, 17):
        out = tmp_path / f"{batch}.jsonl"
        assert call(path, "--id-col", "pump", "--time-col", "when", "--out", out, "--batch", batch) == 0
        for name in ("7", "a b"):
            mine = [line for line in lines_of(out) if line["stream"] == name]
            assert [line["status"] for line in mine] == [line["status"] for line in said]
            # Of other lanes in one call the graph's sums may be taken in another order.
            apart = [line["score"] for line in mine[12:]]
            assert apart == pytest.approx([line["score"] for line in said[12:]], rel=1e-4)


def test_details_hold_values_parts_bands_and_sensors(table, tmp_path):
    assert call(table, "--details", "--out", tmp_path / "out.jsonl") == 0
    last = lines_of(tmp_path / "out.jsonl")[-1]
    assert last["values"] == {"y": wave(59)}
    assert last["sensors"] == {"y": "ok"}
    assert set(last["parts"]) == set(last["band"]) == {"y"}
    assert last["band"]["y"][0] < last["band"]["y"][1]


# ----------------------------------------------------------------------------------------------------------- bad lines

BAD = {
    "fields": (f"{hour(3)},1,2", "ColumnError: the line has 3 fields, expected 2"),
    "time": ("yesterday,1", "StampError: time 'yesterday' is none"),
    "number": (f"{hour(3)},1_000", "ColumnError: sensor 'y': value '1_000' is no number"),
    "quote": (f'"{hour(3)},1', "ColumnError: the line is no csv"),
    "bytes": (f"{hour(3)},\xff", "ParameterError: the line is no UTF-8 text"),
    "zone": (f"{hour(3)}Z,1", "StampError: time"),
    "year": ("3026-01-01T00:00,1", "StampError"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_line_that_cannot_be_used_is_told_with_its_number_and_skipped(fault, table, said, tmp_path, capsys):
    rows = table.read_text().splitlines()
    bad, message = BAD[fault]
    table.write_bytes("\n".join([*rows[:4], bad, *rows[4:]]).encode("latin-1"))
    assert call(table, "--out", tmp_path / "out.jsonl", "--metrics") == 0
    assert lines_of(tmp_path / "out.jsonl") == said
    told = capsys.readouterr().err
    assert f"line 5: {message}" in told
    assert '"bad_lines": 1' in told
    assert call(table, "--strict", "--out", tmp_path / "strict.jsonl") == 2
    assert lines_of(tmp_path / "strict.jsonl") == said[:3]


BAD_JSON = {
    "half": ('{"time": "2026-01-01T03', "ParameterError: the line is no JSON"),
    "list": ("[1, 2]", "ParameterError: the line is JSON, but no object"),
    "tag": ('{"time": "2026-01-01T03:00", "tag": "yy", "value": 1}', "ColumnError: there is no sensor 'yy': did you"),
    "text": ('{"time": "2026-01-01T03:00", "y": [1]}', "ColumnError: sensor 'y': value [1] is no number"),
    "keys": ('{"time": "2026-01-01T03:00", "x": 1}', "ColumnError: the line names none of the sensors ['y']"),
    "no time": ('{"y": 1}', "ColumnError: the line has no 'time'"),
}


@pytest.mark.parametrize("fault", BAD_JSON)
def test_an_object_that_cannot_be_used_is_told_and_skipped(fault, said, tmp_path, capsys):
    rows = [json.dumps({"time": hour(i), "y": wave(i)}) for i in range(60)]
    bad, message = BAD_JSON[fault]
    (tmp_path / "rows.txt").write_text("\n".join([*rows[:3], bad, *rows[3:]]))
    assert call(tmp_path / "rows.txt", "--out", tmp_path / "out.jsonl") == 0
    assert lines_of(tmp_path / "out.jsonl") == said
    assert f"line 4: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["1e999998", "1e5000", "9" * 5000, "nan", "inf"])
def test_a_number_that_is_no_time_is_told_and_skipped(time, said, tmp_path, capsys):
    rows = [f"{1_767_225_600 + 3600 * i},{wave(i)}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["time,y", *rows[:3], f"{time},1", *rows[3:]]))
    assert call(tmp_path / "rows.csv", "--time-unit", "s", "--out", tmp_path / "out.jsonl") == 0
    assert lines_of(tmp_path / "out.jsonl") == said
    assert "line 5: StampError: time " in capsys.readouterr().err


@pytest.mark.parametrize("first", [f"{hour(0)}Z,oops", "9" * 20 + ",1", f"{hour(0)}Z,1,2"])
def test_a_line_that_is_refused_does_not_say_how_the_others_are_read(first, table, said, tmp_path, capsys):
    rows = table.read_text().splitlines()
    table.write_text("\n".join([rows[0], first, *rows[1:]]))
    assert call(table, "--out", tmp_path / "out.jsonl", "--metrics") == 0
    assert lines_of(tmp_path / "out.jsonl") == said
    assert '"bad_lines": 1' in capsys.readouterr().err


def test_a_count_that_reads_true_is_told_and_leaves_a_snapshot_that_can_be_read(tmp_path, capsys):
    (tmp_path / "settings.json").write_text(json.dumps({"channels": {"y": {"kind": "counter"}}}))
    rows = [{"time": hour(i), "y": True if i == 2 else i} for i in range(4)]
    (tmp_path / "rows.txt").write_text("\n".join(map(json.dumps, rows)))
    args = [tmp_path / "rows.txt", "--settings", tmp_path / "settings.json", "--state", tmp_path / "state"]
    assert [call(*args, "--out", tmp_path / "out.jsonl") for _ in range(2)] == [0, 0]
    assert capsys.readouterr().err.count("line 3: ColumnError: sensor 'y': value True is no number") == 1


def test_missing_values_by_any_of_their_names_are_missing_and_no_error(tmp_path, capsys):
    words = ["", "NaN", "null", "NA", "-", "inf"]
    (tmp_path / "rows.csv").write_text("\n".join(["time,y", *(f"{hour(i)},{word}" for i, word in enumerate(words))]))
    assert call(tmp_path / "rows.csv", "--out", tmp_path / "out.jsonl") == 0
    assert {line["status"] for line in lines_of(tmp_path / "out.jsonl")} == {"missing"}
    assert capsys.readouterr().err == ""


def test_many_bad_lines_are_counted_and_not_all_shown(table, tmp_path, capsys):
    table.write_text(table.read_text() + "nothing,1\n" * 500)
    assert call(table, "--out", tmp_path / "out.jsonl", "--metrics") == 0
    told = capsys.readouterr().err
    assert told.count("StampError") == 20
    assert '"bad_lines": 500' in told


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("when,y", "no column of times: it holds ['when', 'y']. Name one with --time-col"),
        ("time,z", "names none of the sensors ['y']"),
        ("time,y,y", "names 'y' twice"),
    ],
)
def test_a_header_that_tells_nothing_ends_the_run(header, message, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(f"{header}\n{hour(0)},1\n")
    assert call(tmp_path / "rows.csv") == 2
    assert message in capsys.readouterr().err


def test_columns_that_are_not_used_are_told_once(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(f"time,y,label\n{hour(0)},1,a\n{hour(1)},2,b\n")
    assert call(tmp_path / "rows.csv") == 0
    assert capsys.readouterr().err == "txl-ts watch: columns not used: label\n"


# ------------------------------------------------------------------------------------------------------------ settings


def test_settings_make_statuses_alerts_and_rules(table, tmp_path):
    rows = table.read_text().splitlines()
    rows[31] = f"{hour(30)},99"
    table.write_text("\n".join(rows))
    settings = {
        "channels": {"y": {"low": 0, "high": 50}},
        "rules": {"out_of_range": {"clear": "2h"}, "missing": {}},
        "maintenance": [[hour(0), hour(10)]],
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert call(table, "--settings", tmp_path / "settings.json", "--alerts-only", "--out", tmp_path / "a.jsonl") == 0
    found = lines_of(tmp_path / "a.jsonl")
    assert [(one["event"], one["kind"], one["at"]) for one in found] == [
        ("raised", "out_of_range", "2026-01-02T06:00:00"),
        ("cleared", "out_of_range", "2026-01-02T08:00:00"),
    ]
    assert (found[0]["sensors"], found[0]["values"]) == (["y"], {"y": 99})
    # The options say the same.
    assert call(table, "--range", "y=0:50", "--alerts", tmp_path / "b.jsonl", "--out", tmp_path / "rows.jsonl") == 0
    assert [one["event"] for one in lines_of(tmp_path / "b.jsonl")] == ["raised", "cleared"]
    assert sum(len(line["alerts"]) for line in lines_of(tmp_path / "rows.jsonl")) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tik": "1h"}, "has 'tik': did you mean 'tick'?"),
        ({"channels": {"y": {"hihg": 1}}}, "channel 'y' has 'hihg': did you mean 'high'?"),
        ({"channels": {"z": {}}}, "the model eats ['y']; the channels of the settings give ['z']"),
        ({"rules": {"anomaly": {"ovr": 1}}}, "rule 'anomaly' has 'ovr'"),
        ([], "holds a list, expected an object"),
        ({"channels": []}, "channels is [], expected an object of channels by name"),
        ({"channels": {"y": 5}}, "channel 'y' is 5, expected an object"),
        ({"channels": {"y": {"low": "0"}}}, "channel 'y': low='0' (str) must be a number"),
        ({"channels": {"y": {"low": True}}}, "channel 'y': low=True (bool) must be a number"),
        ({"channels": {"y": {"period": "360"}}}, "channel 'y': period='360' (str) must be a number"),
        ({"channels": {"y": {"states": None}}}, "channel 'y': states=None (NoneType) must be a list of texts or"),
        ({"channels": {"y": {"may_repeat": 0}}}, "channel 'y': may_repeat=0 (int) must be a list of numbers"),
        ({"channels": {"y": {"may_repeat": ["0"]}}}, "channel 'y': may_repeat=['0'] (list) must be a list of numbers"),
        (
            {"channels": {"y": {"stuck_after": "1h", "stuck_tolerance": "x"}}},
            "channel 'y': stuck_tolerance='x' (str) must be a number",
        ),
        ({"channels": {"y": {"high": float("inf")}}}, "cannot be read as JSON: Infinity is no number of JSON"),
        ({"rules": []}, "rules is [], expected an object of rules by kind"),
        ({"maintenance": 5}, "maintenance is 5, expected a list of windows"),
        ({"maintenance": [[hour(2)]]}, "maintenance has ['2026-01-01T02:00'], expected [start, end]"),
        ({"maintenance": [[hour(2), hour(3), "y"]]}, "'y'], expected [start, end] or"),
        ({"maintenance": [[hour(2), "soon"]]}, "maintenance end 'soon' is of type str and no time"),
        ({"score_while_warming": "no"}, "score_while_warming='no' must be True or False"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings, message, table, tmp_path, capsys):
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert call(table, "--settings", tmp_path / "settings.json") == 2
    assert message in capsys.readouterr().err


def test_a_tick_off_the_models_grid_is_refused_and_a_multiple_of_its_step_is_taken(table, tmp_path, capsys):
    assert call(table, "--tick", "30min") == 2
    assert "tick='30min' is no multiple of the model's step, 1h" in capsys.readouterr().err
    assert call(table, "--tick", "2h", "--out", tmp_path / "out.jsonl") == 0
    assert len(lines_of(tmp_path / "out.jsonl")) == 31


def test_rows_that_the_model_refuses_end_the_run_with_the_models_words(tmp_path, capsys):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"timeout": "1min"}))  # no grid
    rows = [f"{hour(i)},{wave(i)}" for i in range(3)]
    (tmp_path / "rows.csv").write_text("\n".join(["time,y", *rows, "2026-01-01T03:17,1", "2026-01-01T04:00,1"]))
    assert call(tmp_path / "rows.csv", "--settings", settings, "--out", tmp_path / "out.jsonl") == 2
    told = capsys.readouterr().err
    assert "the model cannot take these rows: " in told
    assert "03:17" in told
    assert "earlier call" not in told


def test_a_model_with_columns_beside_its_channels_is_refused(forecaster_beside, table, capsys):
    with pytest.raises(SystemExit):
        main(["watch", str(forecaster_beside), str(table)])
    assert "reads the columns ['temp', 'size'] beside ['y']" in capsys.readouterr().err


@pytest.mark.parametrize("window", [("Z", "Z"), ("+00:00", "+00:00"), ("", "")])
def test_maintenance_may_carry_an_offset_as_lines_do(window, tmp_path):
    rows = [f"{hour(i)}Z,{99 if 30 <= i < 40 else 20}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["time,y", *rows]))
    first, last = (f"{hour(i)}{offset}" for i, offset in zip((30, 36), window, strict=True))
    (tmp_path / "settings.json").write_text(json.dumps({"maintenance": [[first, last]]}))
    args = [
        "--settings",
        tmp_path / "settings.json",
        "--range",
        "y=:50",
        "--alerts-only",
        "--out",
        tmp_path / "a.jsonl",
    ]
    assert call(tmp_path / "rows.csv", *args) == 0
    assert lines_of(tmp_path / "a.jsonl")[0]["at"] == "2026-01-02T13:00:00+00:00"


@pytest.mark.parametrize("span", ["y=3", "y=0:inf", "y=nan:3"])
def test_a_range_must_be_one(span, table, capsys):
    assert call(table, "--range", span) == 2
    assert f"--range {span!r} must be NAME=LOW:HIGH" in capsys.readouterr().err


def test_a_run_that_is_refused_leaves_no_file_open(table, tmp_path, capsys):
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("there is no /proc here")
    assert call(table, "--state", tmp_path / "state", "--out", tmp_path / "out.jsonl") == 0
    before = len(list(fds.iterdir()))
    for _ in range(3):
        assert call(table, "--state", tmp_path / "state", "--out", tmp_path / "out.jsonl", "--tick", "2h") == 2
    assert len(list(fds.iterdir())) == before


def test_a_pipe_cannot_be_followed(capsys):
    assert call("--follow") == 2
    assert "--follow needs a file" in capsys.readouterr().err

"""A forecaster on the disk: what comes back is the same to the bit, and what is not ours is refused."""

import builtins
import copy
import json
import pickle  # noqa: TID251 - to see that it is not used
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.errors import FileFormatError, SaveError
from txl_ts.store import Bundle, load, peek, save

ROOT = Path(__file__).parents[1]
HOUR = pd.Timedelta(hours=1)


def news_for(rows, n_rows, seed=3):
    rng = np.random.default_rng(seed)
    parts = [
        pd.DataFrame(
            {"unique_id": name, "ds": part.ds.max() + HOUR * np.arange(1, n_rows + 1), "y": rng.normal(2, 1, n_rows)}
        )
        for name, part in rows.groupby("unique_id")
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows()


@pytest.fixture(scope="module")
def path(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "demand.txl"
    fitted.save(path)
    return path


@pytest.fixture(scope="module")
def bundle(fitted, path):
    """What stands in the file, its table of tensors written down by hand."""
    return load(path, role="model", expected=lambda config, positions: table(fitted))


def table(model):
    sizes, n = model.config_, len(model._fleet)
    weights, scalers = {}, {}
    for name, tensor in model._model.state_dict().items():
        (scalers if name.startswith("normaliser.") else weights)[name] = (tuple(tensor.shape), "float32")
    scalers = {name: (shape, "float64") for name, (shape, _) in scalers.items()}
    return {"weights": weights, "scalers": scalers, "state": state_table(model)} | {
        "state": state_table(model)
        | {"forecast": ((n, sizes.h, len(sizes.quantiles)), "float32"), "linear_spread": ((sizes.h,), "float32")}
    }


def state_table(model):
    """Names and shapes as the graph's contract spells them: counted in the order of the state, prefix past."""
    sizes, n = model.config_, len(model._fleet)
    slots = sizes.mem_len * sizes.stride
    table = {}
    for i, (name, array) in enumerate(model._fleet.state.items()):
        table[f"past.{i:02d}.{name}"] = (array.shape, str(array.dtype))
    rings = [f"{kind}_{layer}" for layer in range(sizes.n_layers) for kind in ("keys", "values")]
    assert list(model._fleet.state) == [*rings, "count", "norm", "rows"]
    assert model._fleet.state["keys_0"].size >= n * slots * sizes.d_model
    return table


# ----------------------------------------------------------------------------------------------------------- round trip


def test_a_loaded_forecaster_predicts_the_same_bits(fitted, path):
    loaded = TXLForecaster.load(path)
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict(), check_exact=True)
    assert type(loaded) is TXLForecaster


def test_what_was_learned_and_told_comes_back(fitted, path):
    loaded = TXLForecaster.load(path)
    assert loaded.get_params() == {**fitted.get_params(), "quantiles": [0.1, 0.5, 0.8]}
    for name in ("config_", "params_", "history_", "skipped_", "cleaned_", "n_parameters_", "fit_seconds_"):
        assert getattr(loaded, name) == getattr(fitted, name), name
    assert loaded.validation_mse_ == fitted.validation_mse_
    assert loaded.linear_fit_.penalty == fitted.linear_fit_.penalty
    fitted_names = {name for name in vars(fitted) if name.endswith("_") or name.startswith("_")}
    assert {name for name in vars(loaded) if name.endswith("_") or name.startswith("_")} == fitted_names


@pytest.mark.parametrize("quantiles", [(0.5,), [0.1, 0.5], None])
def test_parameters_that_json_spells_otherwise_mean_the_same_after_loading(tiny, rows, tmp_path, quantiles):
    model = TXLForecaster(**{**tiny, "max_epochs": 0, "quantiles": quantiles}).fit(rows)
    model.save(tmp_path / "a")
    loaded = TXLForecaster.load(tmp_path / "a")
    pd.testing.assert_frame_equal(loaded.predict(), model.predict(), check_exact=True)
    assert (loaded.quantiles is None) == (quantiles is None)
    again = TXLForecaster(**loaded.get_params()).fit(rows)
    pd.testing.assert_frame_equal(again.predict(), model.predict(), check_exact=True)
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_numpy_parameters_can_be_saved(tiny, rows, tmp_path):
    """As grid searches give them."""
    numpy = {"quantiles": np.array([0.1, 0.5, 0.8]), "h": np.int64(3), "learning_rate": np.float64(1e-2)}
    model = TXLForecaster(**{**tiny, "max_epochs": 0, **numpy}).fit(rows)
    model.save(tmp_path / "a")
    pd.testing.assert_frame_equal(TXLForecaster.load(tmp_path / "a").predict(), model.predict(), check_exact=True)


@pytest.mark.parametrize("seed", range(6))
def test_save_and_load_at_any_row_leave_the_stream_as_it_was_to_the_bit(forecaster, rows, tmp_path, seed):
    """T10: stop at a random row, save, load, go on; at the first row too, and at mem_len · stride."""
    rng = np.random.default_rng(seed)
    news = news_for(rows, 24)
    n = news.groupby("unique_id").cumcount()
    stop = {0: 0, 1: 15}.get(seed) if seed < 2 else int(rng.integers(1, 24))
    other = copy.deepcopy(forecaster)
    for model in (forecaster, other):
        if stop:
            model.update(news[n < stop])
    other.save(tmp_path / "a.txl")
    other = TXLForecaster.load(tmp_path / "a.txl")
    told, expected = other.update(news[n >= stop]), forecaster.update(news[n >= stop])
    pd.testing.assert_frame_equal(told, expected, check_exact=True, obj=f"seed {seed}, stop {stop}")
    pd.testing.assert_frame_equal(other.predict(), forecaster.predict(), check_exact=True)
    for name, array in forecaster._fleet.state.items():
        assert array.tobytes() == other._fleet.state[name].tobytes(), f"seed {seed}, stop {stop}, state {name}"


@pytest.mark.parametrize("scaler", ["running", "standard"])
def test_scalers_come_back_to_the_bit(tiny, rows, tmp_path, scaler):
    model = TXLForecaster(**{**tiny, "max_epochs": 0, "scaler": scaler}).fit(rows)
    model.save(tmp_path / "a")
    loaded = TXLForecaster.load(tmp_path / "a")
    pd.testing.assert_frame_equal(loaded.predict(df=rows), model.predict(df=rows), check_exact=True)


def test_saving_twice_gives_the_same_bytes_and_replaces_the_file(fitted, path, tmp_path):
    other = tmp_path / "b.txl"
    other.write_bytes(b"what was here before")
    fitted.save(other)
    assert other.read_bytes() == path.read_bytes()


def test_a_save_that_fails_says_so_and_leaves_the_file(fitted, tmp_path):
    with pytest.raises(SaveError, match="could not save"):
        fitted.save(tmp_path / "no" / "such" / "folder.txl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SaveError, match="is a directory"):
        fitted.save(tmp_path / "folder")


def test_a_fresh_process_predicts_the_same_bits(fitted, path, tmp_path):
    code = f"""
import sys; sys.path[:0] = {[str(ROOT)]!r}
from txl_ts import TXLForecaster
TXLForecaster.load({str(path)!r}).predict().to_csv({str(tmp_path / "out.csv")!r})
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fitted.predict().to_csv(tmp_path / "here.csv")  # float32 is written with all its digits
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "here.csv").read_text()


def test_loading_runs_no_pickle_and_moves_no_random_number(path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a pickle was read")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
        (builtins, "eval"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    before, numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the global one, to see it stay
    TXLForecaster.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy).all()  # noqa: NPY002


# ---------------------------------------------------------------------------------------------------------- state files


def test_an_exported_state_holds_the_memories_under_the_graphs_names(fitted, rows, tmp_path):
    fitted.export_state(tmp_path / "state.txl")
    state = load(
        tmp_path / "state.txl", role="stream-state", expected=lambda config, at: {"state": state_table(fitted)}
    )
    assert sorted(state.tensors["state"]) == list(state_table(fitted))
    for name, array in state.tensors["state"].items():
        assert array.tobytes() == fitted._fleet.state[name[len("past.00.") :]].tobytes()
    assert state.positions["ids"] == ["T1", "T2", "T3"]
    last = rows.groupby("unique_id").ds.max()
    assert [pd.Timestamp(stamp) for stamp in state.positions["last_stamps"]] == last.to_list()
    assert state.config["freq"] == "1h"
    assert state.config["model"]["d_model"] == 8
    assert [spec["name"] for spec in state.config["states"]] == list(fitted._fleet.state)


def test_a_state_belongs_to_exactly_one_model(fitted, tiny, rows, tmp_path):
    other = TXLForecaster(**{**tiny, "max_epochs": 0}).fit(rows)
    digests = []
    for i, model in enumerate((fitted, other, fitted)):
        model.export_state(tmp_path / f"{i}.txl")
        digests.append(peek(tmp_path / f"{i}.txl")[1]["model_digest"])
    assert digests[0] == digests[2] != digests[1]


def test_exporting_and_saving_change_nothing(forecaster, tmp_path):
    before = {name: array.copy() for name, array in forecaster._fleet.state.items()}
    forecaster.export_state(tmp_path / "a")
    forecaster.save(tmp_path / "b")
    assert all((forecaster._fleet.state[name] == array).all() for name, array in before.items())


# ----------------------------------------------------------------------------------------------- torn and crafted files


def test_nothing_there_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        TXLForecaster.load(tmp_path / "none.txl")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_torn_file_is_refused(path, tmp_path, part):
    data = path.read_bytes()
    torn = tmp_path / "torn.txl"
    torn.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(FileFormatError):
        TXLForecaster.load(torn)


def test_flipped_bits_are_seen(path, tmp_path):
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.txl"
    for place in rng.integers(0, len(data), 25):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        broken.write_bytes(changed)
        with pytest.raises(FileFormatError):
            TXLForecaster.load(broken)


def test_an_exported_state_is_no_model(fitted, tmp_path):
    fitted.export_state(tmp_path / "state.txl")
    with pytest.raises(FileFormatError, match="is a stream-state, expected a model"):
        TXLForecaster.load(tmp_path / "state.txl")


def test_a_pickle_is_no_model(tmp_path):
    (tmp_path / "a").write_bytes(pickle.dumps({"class": "TXLForecaster"}))  # a stranger's
    with pytest.raises(FileFormatError, match="is no txl-ts file"):
        TXLForecaster.load(tmp_path / "a")


def forge(bundle, path, change=None, tensors=None, role="model"):
    """A file whose hashes all fit, with a changed config and changed positions."""
    config, positions = json.loads(json.dumps((bundle.config, bundle.positions)))
    if change is not None:
        change(config, positions)
    save(path, Bundle(role, config, bundle.tensors if tensors is None else tensors, positions))
    return path


def test_the_forger_makes_good_files_when_asked_to(fitted, bundle, tmp_path):
    loaded = TXLForecaster.load(forge(bundle, tmp_path / "a"))
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict(), check_exact=True)


def put(where, *names_and_value):
    """Set an entry of the config (``"c"``) or of the positions (``"p"``)."""
    *names, last, value = names_and_value

    def change(config, positions):
        at = config if where == "c" else positions
        for name in names:
            at = at[name]
        at[last] = value

    return change


def drop(where, name):
    return lambda config, positions: (config if where == "c" else positions).pop(name)


CRAFTED = {
    "other class": (put("c", "class", "TXLClassifier"), "holds a 'TXLClassifier', expected a 'TXLForecaster'"),
    "no class": (drop("c", "class"), "class"),
    "no sizes": (drop("c", "model"), "model"),
    "no ids": (drop("p", "ids"), "ids"),
    "no style": (drop("c", "style"), "style"),
    "unknown size": (put("c", "model", "d_modle", 8), "d_modle"),
    "wrong size": (put("c", "model", "d_model", 16), "has shape"),
    "text for a size": (put("c", "model", "d_model", "8"), "d_model"),
    "huge width": (put("c", "model", "d_model", 2**30), "parameters"),
    "huge look-back": (put("c", "model", "lookback", 2**40), "parameters"),
    "huge horizon": (put("c", "model", "h", 2**40), "parameters"),
    "more series than states": (put("p", "ids", ["a", "b", "c", "d"]), "has shape"),
    "unknown parameter": (put("c", "params", "pickle", "x"), "config is not one that this version writes"),
    "ids that are lists": (put("p", "ids", [["a"], ["b"], ["c"]]), "."),
    "ids that are fractions": (put("p", "ids", [0.5, 1.5, 2.5]), "."),
    "ids of two kinds": (put("p", "ids", ["a", 1, "b"]), "."),
    "an id twice": (put("p", "ids", ["T1", "T1", "T3"]), "."),
    "ids as one text": (put("p", "ids", "abc"), "."),
    "fewer origins than series": (put("p", "origins", [0]), "."),
    "fewer last rows than series": (put("p", "last", [0, 1]), "."),
    "nested origins": (put("p", "origins", [[0], [0], [0]]), "."),
    "origins that are fractions": (put("p", "origins", [0.5, 0.5, 0.5]), "."),
    "origins beyond int64": (put("p", "origins", [2**70, 0, 0]), "."),
    "fewer fitted ends than series": (put("p", "fitted_end", [0]), "."),
    "a fitted end of a forgotten series as text": (put("p", "fitted_gone", {"ids": ["x"], "ends": ["x"]}), "."),
    "more forgotten series than fitted ends": (put("p", "fitted_gone", {"ids": ["x", "y"], "ends": [0]}), "."),
    "unknown freq": (put("c", "freq", "fortnight"), "."),
    "style of no library": (put("c", "style", "implementation", "os"), "."),
    "history without losses": (put("c", "history", {}), None),
    "history of another form": (put("c", "history", {"train": [], "losses": []}), "."),
    "history of text": (put("c", "history", "train", "x"), "."),
    "penalty as text": (put("c", "linear_penalty", "x"), "."),
    "skipped of another form": (put("c", "skipped", [["a"]]), "."),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_file_is_refused_at_loading(bundle, tmp_path, case):
    change, text = CRAFTED[case]
    forged = forge(bundle, tmp_path / "a", change)
    if text is None:  # harmless
        TXLForecaster.load(forged).predict()
        return
    with pytest.raises(FileFormatError, match=text):
        TXLForecaster.load(forged)


def test_an_extra_or_a_missing_tensor_is_refused(bundle, tmp_path):
    extra = {**bundle.tensors, "weights": bundle.tensors["weights"] | {"__reduce__": np.zeros(2, np.float32)}}
    with pytest.raises(FileFormatError, match="not expected: '__reduce__'"):
        TXLForecaster.load(forge(bundle, tmp_path / "a", tensors=extra))
    fewer = {**bundle.tensors, "weights": dict(list(bundle.tensors["weights"].items())[1:])}
    with pytest.raises(FileFormatError, match="missing"):
        TXLForecaster.load(forge(bundle, tmp_path / "b", tensors=fewer))


CLAIMS = {
    "nothing": {},
    "long memory": {"mem_len": 2**31 - 1, "n_layers": 1},
    "long stride": {"stride": 2**40},
    "long look-back": {"lookback": 30_000_000, "d_model": 2, "n_heads": 1, "d_ff": 1, "h": 1, "quantiles": [0.5]},
    "many channels": {"n_channels": 2_000_000, "h": 1, "quantiles": [0.5]},
    "wide": {"d_model": 4000, "d_ff": 4000},
    "many layers": {"n_layers": 400_000, "d_model": 2, "n_heads": 1, "d_ff": 1},
}
# The alarm counts CPU time of this process alone: other work on the machine changes nothing.
COST = """
import json, resource, signal, sys, time
sys.path[:0] = [ROOT]
from txl_ts import TXLForecaster
from txl_ts.errors import FileFormatError

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))

def stop(*_):
    raise TimeoutError

signal.signal(signal.SIGVTALRM, stop)
resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30,) * 2)
costs = {}
TXLForecaster.load(PATHS["nothing"])  # what the first call imports is not the file's cost
for claim, path in PATHS.items():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again
    before, begin = peak(), time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 6)
    try:
        TXLForecaster.load(path)
        refused = False
    except FileFormatError:
        refused = True
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    costs[claim] = refused, peak() - before, time.process_time() - begin
print(json.dumps(costs))
"""


@pytest.fixture(scope="module")
def costs(bundle, tmp_path_factory):
    """Whether each claim was refused, the MiB that it took at its peak, and its seconds of CPU."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux: the peak size of a process is read from /proc")
    folder = tmp_path_factory.mktemp("claims")
    paths = {
        claim: str(forge(bundle, folder / str(i), lambda config, positions, sizes=sizes: config["model"].update(sizes)))
        for i, (claim, sizes) in enumerate(CLAIMS.items())
    }
    code = COST.replace("ROOT", repr(str(ROOT))).replace("PATHS", repr(paths))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claimed_sizes_cost_neither_memory_nor_time(costs, claim):
    """S1: a small file that claims a huge model is refused within 64 MiB and 2 seconds."""
    refused, mebibytes, seconds = costs[claim]
    assert refused == (claim != "nothing")
    assert mebibytes < 64
    assert seconds < 2

"""What goes in comes out, the same content has the same bytes, and damage is never loaded."""

import os
import random
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from txl_ts.errors import FileFormatError, ParameterError, SaveError
from txl_ts.store import Bundle, load, peek, save, save_epoch, table_of, zipped

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]
CONFIG = {"class": "TXLForecaster", "params": {"h": 24, "quantiles": [0.1, 0.5], "note": "ä\n\ud800", "none": None}}
POSITIONS = {"meter-7": {"seq": 2**100, "time": 1.5e300, "done": False}}


def make_bundle(role="checkpoint", **changes):
    rng = np.random.default_rng(7)
    arrays = {
        "weights": {"head.w": rng.normal(size=(2, 3)).astype(np.float32), "head.b": np.zeros(3, np.float16)},
        "scalers": {"mean": np.array(1e300), "count": np.array([3, 5])},
        "state": {f"past.{dtype}": np.ones((2, 3), dtype) for dtype in DTYPES}
        | {"nothing": np.empty((0, 4), np.int32)},
        "optimiser": {},
    }
    return Bundle(**{"role": role, "config": CONFIG, "tensors": arrays, "positions": POSITIONS, **changes})


def tiny_bundle(seq=0):
    return Bundle("stream-state", {"class": "x"}, {"state": {"m": np.full((2, 3), seq, np.float32)}}, {"seq": seq})


def load_as(path, bundle):
    return load(path, role=bundle.role, expected=lambda config, positions: table_of(bundle.tensors))


def assert_same(got, want):
    assert (got.role, got.config, got.positions) == (want.role, want.config, want.positions)
    assert {part: set(named) for part, named in got.tensors.items()} == {p: set(n) for p, n in want.tensors.items()}
    for part, named in want.tensors.items():
        for name, array in named.items():
            back = got.tensors[part][name]
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert back.tobytes() == array.tobytes()


@pytest.fixture(params=["zip", "folder"])
def write(request, tmp_path):
    """Save a bundle as a zip or as a folder, and give the path."""
    path = tmp_path / "demand"

    def write(bundle):
        (save if request.param == "zip" else save_epoch)(path, bundle)
        return path

    return write


# ------------------------------------------------------------------------------------------------------- round trips


def test_every_dtype_and_shape_comes_back_bit_by_bit(write):
    bundle = make_bundle()
    assert_same(load_as(write(bundle), bundle), bundle)


def test_empty_positions_and_no_tensors_come_back(write):
    bundle = Bundle("model", {}, {}, {})
    assert_same(load_as(write(bundle), bundle), bundle)


def test_loaded_arrays_are_aligned_and_writable_and_do_not_overlap(write):
    bundle = make_bundle()
    arrays = load_as(write(bundle), bundle).tensors["state"]
    for array in arrays.values():
        assert array.flags.aligned
        array[...] = 0
    for name, array in arrays.items():
        array[...] = 1
        assert all((other == 0).all() for key, other in arrays.items() if key != name)
        array[...] = 0


def test_strided_and_big_endian_arrays_come_back_as_plain_ones(write):
    array = np.arange(24.0).reshape(4, 6)
    bundle = make_bundle(tensors={"weights": {"t": array.T, "s": array[::2, ::-3], "b": array.astype(">f8")}})
    arrays = load_as(write(bundle), bundle).tensors["weights"]
    np.testing.assert_array_equal(arrays["t"], array.T)
    np.testing.assert_array_equal(arrays["s"], array[::2, ::-3])
    np.testing.assert_array_equal(arrays["b"], array)


def test_saving_leaves_the_bundle_as_it_was(write):
    bundle, same = make_bundle(), make_bundle()
    write(bundle)
    assert_same(bundle, same)


NAMES = st.text("AZaz09_-.", min_size=1, max_size=128).filter(lambda name: name.strip("."))
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda t: hnp.arrays(t, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
LEAVES = st.none() | st.integers(-(2**127), 2**127) | st.text() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@settings(max_examples=60, deadline=None)
@given(arrays=st.dictionaries(NAMES, ARRAYS, max_size=4), positions=st.dictionaries(st.text(), PLAIN))
def test_any_content_comes_back(tmp_path_factory, arrays, positions):
    bundle = Bundle("stream-state", {}, {"state": arrays}, positions)
    path = tmp_path_factory.mktemp("any") / "s.txl"
    save(path, bundle)
    assert_same(load_as(path, bundle), bundle)


def test_equal_content_has_equal_bytes_in_any_order(tmp_path):
    bundle = make_bundle()
    turned = make_bundle(
        config=dict(reversed(CONFIG.items())),
        tensors={part: dict(reversed(named.items())) for part, named in reversed(bundle.tensors.items())},
    )
    save(tmp_path / "a", bundle)
    save(tmp_path / "b", turned)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_safetensors_library_reads_our_parts(tmp_path):
    bundle = make_bundle()
    save(tmp_path / "a.txl", bundle)
    with zipfile.ZipFile(tmp_path / "a.txl") as archive:
        theirs = safetensors.numpy.load(archive.read("state-0.safetensors"))
    assert_same(make_bundle(tensors={"state": theirs}), make_bundle(tensors={"state": bundle.tensors["state"]}))


def test_the_zip_is_a_zip_for_others_and_its_unpacked_tree_loads(tmp_path):
    bundle = make_bundle()
    save(tmp_path / "a.txl", bundle)
    with zipfile.ZipFile(tmp_path / "a.txl") as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "CURRENT", "config.json", "manifest.json", "optimiser.safetensors", "positions-0.json",
            "scalers.safetensors", "state-0.safetensors", "weights.safetensors",
        ]  # fmt: skip
        archive.extractall(tmp_path / "unpacked")
    assert_same(load_as(tmp_path / "unpacked", bundle), bundle)
    assert save_epoch(tmp_path / "unpacked", bundle) == 1
    assert_same(load_as(tmp_path / "unpacked", bundle), bundle)


def test_sizes_and_offsets_beyond_4_gib_use_the_wide_fields(tmp_path, monkeypatch):
    monkeypatch.setattr(zipped, "WIDE_FROM", 150)  # a stand-in: some files are wide then, some only far away
    bundle = make_bundle()
    save(tmp_path / "a.txl", bundle)
    assert_same(load_as(tmp_path / "a.txl", bundle), bundle)
    with zipfile.ZipFile(tmp_path / "a.txl") as archive:
        assert archive.testzip() is None


def test_content_decides_and_not_the_suffix(tmp_path):
    save(tmp_path / "a.onnx", tiny_bundle())
    save_epoch(tmp_path / "b.txl", tiny_bundle())
    for name in ("a.onnx", "b.txl"):
        assert_same(load_as(tmp_path / name, tiny_bundle()), tiny_bundle())


def test_peek_reads_role_and_config(write):
    path = write(make_bundle())
    assert peek(path) == ("checkpoint", CONFIG)


def test_a_file_may_be_reached_through_a_link_and_saving_replaces_the_link(tmp_path):
    save(tmp_path / "v1.txl", tiny_bundle(1))
    (tmp_path / "live.txl").symlink_to("v1.txl")
    assert load_as(tmp_path / "live.txl", tiny_bundle()).positions == {"seq": 1}
    save(tmp_path / "live.txl", tiny_bundle(2))
    assert load_as(tmp_path / "v1.txl", tiny_bundle()).positions == {"seq": 1}


def test_any_of_several_roles_will_do(write):
    path = write(tiny_bundle())
    assert load(path, role=("model", "stream-state"), expected=lambda c, p: table_of(tiny_bundle().tensors))


def test_the_table_may_use_the_words_of_numpy_and_depend_on_config_and_positions(write):
    path = write(tiny_bundle(5))
    seen = []

    def expected(config, positions):
        seen.append((config, positions))
        return {"state": {"m": ((2, 3), "float32")}, "weights": {}}

    load(path, role="stream-state", expected=expected)
    assert seen == [({"class": "x"}, {"seq": 5})]


# ------------------------------------------------------------------------------------------------------------ epochs


def test_epochs_count_up_and_the_last_two_are_kept(tmp_path):
    assert [save_epoch(tmp_path / "s", tiny_bundle(seq)) for seq in range(4)] == [0, 1, 2, 3]
    assert load_as(tmp_path / "s", tiny_bundle()).positions == {"seq": 3}
    assert sorted(os.listdir(tmp_path / "s")) == [
        "CURRENT", "LOCK", "config-2.json", "config-3.json", "manifest-2.json", "manifest-3.json",
        "positions-2.json", "positions-3.json", "state-2.safetensors", "state-3.safetensors",
    ]  # fmt: skip


def test_litter_of_the_dead_is_swept_and_strangers_files_are_not(tmp_path):
    save_epoch(tmp_path, tiny_bundle(0))
    for name in ("state-1.safetensors", "weights-999.safetensors", "manifest-1.json"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes-1.json").write_text("mine")
    (tmp_path / "config.json").write_text("mine too")
    assert save_epoch(tmp_path, tiny_bundle(1)) == 1
    assert load_as(tmp_path, tiny_bundle()).positions == {"seq": 1}
    names = set(os.listdir(tmp_path))
    assert {"notes-1.json", "config.json"} < names
    assert "weights-999.safetensors" not in names


def test_a_reader_that_is_overtaken_by_two_saves_starts_again(tmp_path):
    save_epoch(tmp_path, tiny_bundle(0))
    calls = []

    def expected(config, positions):
        calls.append(positions)
        if len(calls) == 1:  # epoch 0 is being read, and vanishes
            save_epoch(tmp_path, tiny_bundle(1))
            save_epoch(tmp_path, tiny_bundle(2))
        return table_of(tiny_bundle().tensors)

    assert load(tmp_path, role="stream-state", expected=expected).positions == {"seq": 2}
    assert calls == [{"seq": 0}, {"seq": 2}]


def test_a_damaged_current_is_refused_and_the_next_save_heals_it(tmp_path):
    save_epoch(tmp_path, tiny_bundle(0))
    save_epoch(tmp_path, tiny_bundle(1))
    old = (tmp_path / "CURRENT").read_text()
    (tmp_path / "CURRENT").write_text(old.replace("manifest-1", "manifest-0"))
    with pytest.raises(FileFormatError, match=r"manifest-0.json is damaged"):
        load_as(tmp_path, tiny_bundle())
    (tmp_path / "CURRENT").write_bytes(b"")
    assert save_epoch(tmp_path, tiny_bundle(2)) == 2
    assert load_as(tmp_path, tiny_bundle()).positions == {"seq": 2}


# ------------------------------------------------------------------------------------------------------------ damage


def damaged_files(path):
    """Give the files of a saved bundle that a reader looks at, with their bytes."""
    files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.name != "LOCK"]
    return {file: file.read_bytes() for file in files}


def put(file, at, byte):
    """Change one byte in place: to write a whole file anew takes the disk a hundred times longer."""
    with open(file, "r+b", buffering=0) as opened:
        os.pwrite(opened.fileno(), bytes([byte]), at)


def test_a_file_torn_at_any_byte_is_refused(write):
    path = write(tiny_bundle(3))
    for file, data in damaged_files(path).items():
        for length in reversed(range(len(data))):
            os.truncate(file, length)
            with pytest.raises(FileFormatError):
                load_as(path, tiny_bundle())
        file.write_bytes(data)
    assert load_as(path, tiny_bundle()).positions == {"seq": 3}


def test_a_missing_file_of_a_folder_is_refused(tmp_path):
    save_epoch(tmp_path, tiny_bundle())
    for file, data in damaged_files(tmp_path).items():
        file.unlink()
        with pytest.raises(FileFormatError, match="is missing"):
            load_as(tmp_path, tiny_bundle())
        file.write_bytes(data)


def test_no_flipped_bit_is_ever_loaded(write):
    path = write(tiny_bundle(3))
    files = damaged_files(path)
    seed = 11
    rng = random.Random(seed)
    places = [(file, at) for file, data in files.items() for at in range(len(data))]
    for file, at in rng.choices(places, k=2_000):
        bit = rng.randrange(8)
        put(file, at, files[file][at] ^ 1 << bit)
        try:
            load_as(path, tiny_bundle())
        except FileFormatError:
            put(file, at, files[file][at])
        else:
            pytest.fail(f"seed {seed}: bit {bit} of byte {at} of {file.name} was flipped and loaded")
    assert load_as(path, tiny_bundle()).positions == {"seq": 3}


@pytest.mark.parametrize("more", [b"\0", b"PK\5\6" + bytes(18)])
def test_bytes_in_front_or_behind_are_refused(tmp_path, more):
    save(tmp_path / "a", tiny_bundle())
    data = (tmp_path / "a").read_bytes()
    for changed in (more + data, data + more):
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(FileFormatError):
            load_as(tmp_path / "a", tiny_bundle())


# --------------------------------------------------------------------------------------------- what cannot be saved


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": "zip"}, "role is 'zip', expected one of 'model', 'stream-state', 'checkpoint'"),
        ({"config": [1]}, "config must be a dict, got list"),
        ({"config": {"a": {"b": float("nan")}}}, r"the value\['a'\]\['b'\] is nan"),
        ({"config": {1: 2}}, "has the key 1 of type int, not text"),
        ({"config": {"a": np.int64(3)}}, r"the value\['a'\] is of type int64"),
        ({"config": {"a": 2**128}}, "is a huge integer"),
        ({"positions": {"a": [0] * 300_000}}, "positions is too large"),
        ({"positions": {"a": "x" * 2**24}}, "positions is too large"),
        ({"tensors": {"wights": {}}}, "has the parts 'wights', expected parts among"),
        ({"tensors": {"state": {"../x": np.zeros(2)}}}, "'../x' has a name that cannot be stored"),
        ({"tensors": {"state": {"..": np.zeros(2)}}}, "'..' has a name that cannot be stored"),
        ({"tensors": {"state": {"__metadata__": np.zeros(2)}}}, "has a name that cannot be stored"),
        ({"tensors": {"state": {"a": [1.0]}}}, "must be a plain numpy array, got list"),
        ({"tensors": {"state": {"a": np.ma.zeros(2)}}}, "must be a plain numpy array, got MaskedArray"),
        ({"tensors": {"state": {"a": np.array(["x"])}}}, "has dtype <U1, which cannot be stored"),
        ({"tensors": {"state": {"a": np.array([None])}}}, "has dtype object, which cannot be stored"),
        ({"tensors": {"state": {"a": np.zeros((1,) * 9)}}}, "at most 8 axes"),
        ({"tensors": {"scalers": {"a": np.zeros(2, np.float32)}}}, "scalers are kept in float64"),
        ({"tensors": {"weights": {"a": np.array([1, np.nan])}}}, "'a' holds NaN or infinity"),
        ({"tensors": {"weights": {"a": np.array([1, -np.inf])}}}, "'a' holds NaN or infinity"),
        ({"tensors": {"state": dict.fromkeys(map(str, range(10_001)), np.zeros(1))}}, "holds 10001 arrays"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, changes, text):
    for write in (save, save_epoch):
        with pytest.raises(ParameterError, match=text):
            write(tmp_path / "a", make_bundle(**changes))
    assert os.listdir(tmp_path) == []


def test_a_cyclic_or_deep_config_is_not_saved(tmp_path):
    cycle = {}
    cycle["self"] = cycle
    with pytest.raises(ParameterError, match="nested too deeply, at most 32 levels"):
        save(tmp_path / "a", make_bundle(config=cycle))


def test_nan_in_the_state_is_content_and_comes_back(write):
    bundle = make_bundle(tensors={"state": {"rows": np.array([np.nan, np.inf, 1.0])}})
    assert_same(load_as(write(bundle), bundle), bundle)


def test_saving_over_the_other_kind_says_which_call_works(tmp_path):
    save(tmp_path / "file", tiny_bundle())
    save_epoch(tmp_path / "folder", tiny_bundle())
    with pytest.raises(SaveError, match="is a file: use `save`"):
        save_epoch(tmp_path / "file", tiny_bundle())
    with pytest.raises(SaveError, match="is a directory: use `save_epoch`"):
        save(tmp_path / "folder", tiny_bundle())
    with pytest.raises(SaveError, match="No such file or directory"):
        save(tmp_path / "nowhere" / "file", tiny_bundle())
    for name in ("file", "folder"):
        assert_same(load_as(tmp_path / name, tiny_bundle()), tiny_bundle())
    assert len(os.listdir(tmp_path)) == 2


def test_loading_nothing_or_an_unknown_role_is_the_callers_mistake(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_as(tmp_path / "nothing", tiny_bundle())
    with pytest.raises(ParameterError, match="role is 'modle', expected one of"):
        load(tmp_path, role="modle", expected=lambda c, p: {})

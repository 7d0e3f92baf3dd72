"""Files that someone made to hurt: each is refused by name, and hashes that fit do not help."""

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_ts.errors import FileFormatError
from txl_ts.store import Bundle, load, peek
from txl_ts.store.zipped import Entry, ZipWriter, directory

WEIGHTS = {"head.w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
TABLE = {"weights": {"head.w": ((2, 3), "F32")}}
BODY = np.arange(6, dtype=np.float32).tobytes()


def part(header, body=BODY):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def forge(path, changed=None, **manifest):
    """Write a file whose hashes all fit; ``manifest`` overrides what the manifest says."""
    content = {"config.json": b"{}", "positions-0.json": b"{}", "weights.safetensors": part(WEIGHTS)} | (changed or {})
    content = {name: data for name, data in content.items() if data is not None}
    listed = {name: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for name, d in content.items()}
    whole = {"format": "txl", "version": "1.0", "role": "model", "epoch": 0, "files": listed} | manifest
    text = manifest.get("raw") or json.dumps(whole).encode()
    content["manifest.json"] = text
    content["CURRENT"] = f"manifest.json {hashlib.sha256(text).hexdigest()}\n".encode()
    with open(path, "w+b") as file:
        writer = ZipWriter(file)
        for name, data in content.items():
            writer.add(name, len(data), [data])
        writer.finish()
    return path


def load_forged(path, table=TABLE):
    return load(path, role="model", expected=lambda config, positions: table)


def test_the_forger_makes_good_files_when_asked_to(tmp_path):
    bundle = load_forged(forge(tmp_path / "a"))
    assert bundle.tensors["weights"]["head.w"].tobytes() == BODY


def entry(**changes):
    return {"head.w": WEIGHTS["head.w"] | changes}


TREE = ("config.json", "positions-0.json", "weights.safetensors")

PARTS = {
    "duplicate tensor": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', "the key 'a' is there twice"),
    "duplicate key": (b'{"a":{"dtype":"U8","dtype":"U8","shape":[0]}}', "the key 'dtype' is there twice"),
    "shape of 2^40 by 0": (entry(shape=[2**40, 0], data_offsets=[0, 0]), r"shape \[1099511627776, 0\], expected"),
    "overflowing shape": (entry(shape=[2**31 - 1] * 8), "spans 24 bytes, shape"),
    "negative axis": (entry(shape=[-2, -3]), r"has shape \[-2, -3\]"),
    "boolean axis": (entry(shape=[True, 6]), r"has shape \[True, 6\]"),
    "fractional axis": (entry(shape=[2.0, 3]), r"has shape \[2.0, 3\]"),
    "shape without list": (entry(shape=6), "has shape 6"),
    "nine axes": (entry(shape=[1] * 7 + [2, 3]), "expected at most 8 axes"),
    "path as a name": ({"../../x": WEIGHTS["head.w"]}, r"tensor name '../../x' is not of the form"),
    "dots as a name": ({"..": WEIGHTS["head.w"]}, r"tensor name '..' is not of the form"),
    "long name": ({"x" * 129: WEIGHTS["head.w"]}, "is not of the form"),
    "line end in a name": ({"x\n": WEIGHTS["head.w"]}, "is not of the form"),
    "metadata": (WEIGHTS | {"__metadata__": {"a": "b"}}, "tensor name '__metadata__'"),
    "unknown dtype": (entry(dtype="BF16", shape=[12]), "has dtype 'BF16', expected one of"),
    "dtype without text": (entry(dtype=["F32"]), r"has dtype \['F32'\]"),
    "missing key": ({"head.w": {"dtype": "F32", "shape": [2, 3]}}, "needs exactly dtype, shape, data_offsets"),
    "entry without object": ({"head.w": 3}, "needs exactly dtype, shape, data_offsets, got 3"),
    "offsets outside": (entry(data_offsets=[0, 2**40]), "spans 1099511627776 bytes"),
    "offsets backwards": (entry(data_offsets=[24, 0]), "spans -24 bytes"),
    "gap": (entry(shape=[2], data_offsets=[16, 24]), "begins at byte 16, expected 0"),
    "not covered": (entry(shape=[2], data_offsets=[0, 8]), "the tensors cover 8 bytes, the file holds 24"),
    "overlap": (WEIGHTS | {"z": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "at byte 8, expected 24"),
    "other shape": (entry(shape=[3, 2]), r"'head.w' has shape \(3, 2\) of F32, expected \(2, 3\) of F32"),
    "other dtype": (entry(dtype="I32"), r"'head.w' has shape \(2, 3\) of I32, expected \(2, 3\) of F32"),
    "other name": ({"tail.w": WEIGHTS["head.w"]}, "missing: 'head.w'; tensors are not expected: 'tail.w'"),
    "extra": (WEIGHTS | {"z": {"dtype": "F32", "shape": [0], "data_offsets": [24, 24]}}, "not expected: 'z'"),
    "no header": (b"", "is not JSON"),
    "list for a header": (b"[]", "must hold a JSON object, got list"),
    "latin-1": (b'{"\xe9": 1}', "is not JSON that can be trusted: 'ascii' codec"),
    "deep": (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested too deeply"),
    "a little too deep": (b'{"a":' * 33 + b"1" + b"}" * 33, "nested too deeply, at most 32"),
    "huge integer": (b'{"a":' + b"9" * 5_000 + b"}", "a huge integer of 5000 digits"),
    "long fraction": (b'{"a":0.' + b"9" * 5_000 + b"}", "is not a finite number of usual length"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_crafted_header_is_refused_by_name(tmp_path, name):
    header, text = PARTS[name]
    with pytest.raises(FileFormatError, match=text):
        load_forged(forge(tmp_path / "a", {"weights.safetensors": part(header)}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    body = np.array([0, 1, 2, value, 4, 5], np.float32).tobytes()
    with pytest.raises(FileFormatError, match=r"tensor 'head.w' holds NaN or infinity"):
        load_forged(forge(tmp_path / "a", {"weights.safetensors": part(WEIGHTS, body)}))


def test_booleans_other_than_0_and_1_are_refused(tmp_path):
    header = {"b": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}
    path = forge(tmp_path / "a", {"weights.safetensors": part(header, b"\1\2")})
    with pytest.raises(FileFormatError, match="is BOOL and holds bytes other than 0 and 1"):
        load_forged(path, {"weights": {"b": ((2,), "BOOL")}})


def test_a_misaligned_body_is_read_into_aligned_arrays(tmp_path):
    header = json.dumps(WEIGHTS).encode()
    header += b" " * (1 + -len(header) % 8)
    array = load_forged(forge(tmp_path / "a", {"weights.safetensors": part(header)})).tensors["weights"]["head.w"]
    assert array.flags.aligned
    assert array.flags.writeable
    assert array.tobytes() == BODY


@pytest.mark.parametrize("n", [0, 7])
def test_a_part_shorter_than_its_length_field_is_refused(tmp_path, n):
    with pytest.raises(FileFormatError, match=f"in a file of {n}"):
        load_forged(forge(tmp_path / "a", {"weights.safetensors": bytes(n)}))


@pytest.mark.parametrize("n", [2**64 - 1, 2**40, 1000])
def test_a_header_longer_than_the_file_is_refused(tmp_path, n):
    with pytest.raises(FileFormatError, match=f"claims a header of {n} bytes"):
        load_forged(forge(tmp_path / "a", {"weights.safetensors": n.to_bytes(8, "little") + b"{}"}))


def test_20_000_tensors_are_refused_even_if_they_are_expected(tmp_path):
    header = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
    path = forge(tmp_path / "a", {"weights.safetensors": part(header, b"")})
    with pytest.raises(FileFormatError, match="holds 20000 tensors, at most 10000"):
        load_forged(path)
    with pytest.raises(FileFormatError, match="asks for 20000 tensors, at most 10000"):
        load_forged(path, {"weights": dict.fromkeys(header, ((0,), "U8"))})


def test_a_part_larger_than_the_table_allows_is_refused_before_it_is_read(tmp_path):
    path = forge(tmp_path / "a", {"weights.safetensors": bytes(5 * 2**20)})
    with pytest.raises(FileFormatError, match=r"'weights.safetensors' has 5242880 bytes, at most 4194336"):
        load_forged(path)


def test_missing_and_surplus_parts_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="lacks the parts 'weights'"):
        load_forged(forge(tmp_path / "a", {"weights.safetensors": None}))
    with pytest.raises(FileFormatError, match="holds the parts 'optimiser'"):
        load_forged(forge(tmp_path / "a", {"optimiser.safetensors": part(WEIGHTS)}))


JSON = {
    "NaN": (b'{"a": NaN}', "NaN is not a JSON number"),
    "Infinity": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "1e999": (b'{"a": 1e999}', "'1e999' is not a finite number"),
    "129 bits": (b'{"a": %d}' % 2**128, "is a huge integer, at most 128 bits"),
    "repeated key": (b'{"a": {"b": 1, "b": 1}}', "the key 'b' is there twice"),
    "list": (b"[1]", "must hold a JSON object, got list"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "is not JSON"),
    "byte order mark": (b'\xef\xbb\xbf{"a": 1}', "is not JSON"),
    "brackets": (b"[" * 2**20, "holds 1048576 items"),
    "deep": (b"[" * 200_000, "nested too deeply"),
    "trailing": (b"{} {}", "is not JSON"),
    "too long": (b'{"a":"' + b"x" * 2**22 + b'"}', "bytes, at most"),
}


@pytest.mark.parametrize("file", ["config.json", "positions-0.json"])
@pytest.mark.parametrize("name", JSON)
def test_crafted_json_is_refused_by_name(tmp_path, file, name):
    data, text = JSON[name]
    path = forge(tmp_path / "a", {file: data})
    with pytest.raises(FileFormatError, match=text):
        load_forged(path)
    if file == "config.json":
        with pytest.raises(FileFormatError, match=text):
            peek(path)


COSTLY = {
    "objects": b'{"a":[' + b",".join(b'{"%06d":-9999}' % i for i in range(2**17 - 2)) + b"]}",
    "lists": b'{"a":[' + b",".join([b"[]"] * (2**17 - 2)) + b"]}",
    "wide text": b'{"a":"\\ud83d\\ude00' + b"x" * (2**22 - 30) + b'"}',
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_accepted_json_takes_more_than_64_mib(tmp_path, name):
    """In a process of its own, for the peak of memory never goes down again."""
    code = """
import resource, sys
from txl_ts.store import peek
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peek(sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    path = forge(tmp_path / "a", {"config.json": COSTLY[name]})
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 64


MANIFESTS = {
    "other role": ({"role": "checkpoint"}, "is a checkpoint, expected a model. Pass the file"),
    "unknown role": ({"role": "virus"}, "names the role 'virus', expected one of"),
    "role without text": ({"role": ["model"]}, r"names the role \['model'\]"),
    "version 2.0": ({"version": "2.0"}, "has format version 2.0; this txl-ts reads 1.x.*pip install --upgrade txl-ts"),
    "version 1": ({"version": 1}, "names the version 1, expected one such as '1.0'"),
    "other format": ({"format": "zip"}, "names the format 'zip', expected 'txl'"),
    "extra key": ({"x": 1}, "the manifest has the keys"),
    "negative epoch": ({"epoch": -1}, "claims the epoch -1"),
    "other epoch": ({"epoch": 1}, "the manifest of epoch 1 lists 'positions-0.json' of another epoch"),
    "files without object": ({"files": []}, r"files are \[\], expected an object"),
    "path": ({"files": {"../config.json": {}}}, "lists '../config.json', which is no file of this format"),
    "absolute": ({"files": {"/etc/passwd": {}}}, "lists '/etc/passwd'"),
    "unknown part": ({"files": {"evil.safetensors": {}}}, "lists 'evil.safetensors'"),
    "wrong suffix": ({"files": {"config.safetensors": {}}}, "lists 'config.safetensors'"),
    "pickle": ({"files": {"weights.pkl": {}}}, "lists 'weights.pkl'"),
    "no claim": ({"files": {"config.json": 3}}, "says 3 of config.json"),
    "negative size": ({"files": {"config.json": {"bytes": -1, "sha256": "0" * 64}}}, "of config.json, expected bytes"),
    "no files": ({"files": {}}, "lists no file for 'config', 'positions'"),
    "bomb claim": (
        {"files": {n: {"bytes": 2**50, "sha256": "0" * 64} for n in TREE}},
        "config.json has 2 bytes, the manifest says 1125899906842624",
    ),
    "wrong sha256": (
        {"files": {n: {"bytes": 2, "sha256": "0" * 64} for n in TREE}},
        "config.json is damaged, its sha256 is 44136fa355b3",
    ),
    "unlisted file": (
        {"files": {n: {"bytes": 2, "sha256": "0" * 64} for n in ("config.json", "positions-0.json")}},
        "the files 'weights.safetensors' are not in the manifest",
    ),
    "two files for a stem": (
        {"files": {n: {"bytes": 2, "sha256": "0" * 64} for n in ("config.json", "config-0.json")}},
        "lists two files for config",
    ),
    "too long": ({"x": "y" * 2**20}, "'manifest.json' has 10489.. bytes, at most 1048576"),
    "repeated key": ({"raw": b'{"format":"txl","format":"txl"}'}, "the key 'format' is there twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_crafted_manifest_is_refused_by_name(tmp_path, name):
    changes, text = MANIFESTS[name]
    with pytest.raises(FileFormatError, match=text):
        load_forged(forge(tmp_path / "a", **changes))


def test_a_listed_file_that_is_not_there_is_refused(tmp_path):
    files = {name: {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()} for name in TREE}
    with pytest.raises(FileFormatError, match=r"the file 'positions-0.json' is missing"):
        load_forged(forge(tmp_path / "a", {"positions-0.json": None}, files=files))


def test_a_newer_minor_version_may_say_more(tmp_path):
    assert load_forged(forge(tmp_path / "a", version="1.7", made_by="a later txl-ts"))


@pytest.mark.parametrize(
    "error", [KeyError("d_model"), TypeError("x"), RecursionError(), MemoryError(), OverflowError()]
)
def test_a_config_that_the_caller_cannot_use_is_a_bad_file(tmp_path, error):
    def expected(config, positions):
        raise error

    with pytest.raises(FileFormatError, match="the config cannot be used") as caught:
        load(forge(tmp_path / "a"), role="model", expected=expected)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "table", [3, {"weights": {"a": 3}}, {"weights": {"a": ((2,), "F9")}}, {"weights": {"a": ((-2,), "F32")}}]
)
def test_a_table_that_makes_no_sense_is_a_bad_file(tmp_path, table):
    with pytest.raises(FileFormatError, match="the config cannot be used"):
        load_forged(forge(tmp_path / "a"), table)


# --------------------------------------------------------------------------------------------------------------- zip


def rezip(path, *, compression=zipfile.ZIP_STORED, extra=()):
    source = zipfile.ZipFile(forge(path))
    content = [(name, source.read(name)) for name in source.namelist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in [*content, *extra]:
            archive.writestr(name, data)
    return path


def test_a_compressed_entry_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"the entry 'config.json' is compressed \(method 8\)"):
        load_forged(rezip(tmp_path / "a", compression=zipfile.ZIP_DEFLATED))


def test_an_archive_of_another_tool_is_refused_and_the_message_says_what_to_do(tmp_path):
    with pytest.raises(FileFormatError, match="if another tool packed it, unpack it and load the folder"):
        load_forged(rezip(tmp_path / "a"))


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "..", ".", "x\\y", "a b", "C:x", "é"])
def test_an_entry_that_leaves_the_tree_is_refused(tmp_path, name):
    with pytest.raises(FileFormatError, match="has a name that is not taken"):
        load_forged(rezip(tmp_path / "a", extra=[(name, b"")]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_repeated_entry_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"the entry 'config.json' is there twice"):
        load_forged(rezip(tmp_path / "a", extra=[("config.json", b"{}")]))


def test_entries_that_claim_more_than_is_there_or_share_bytes_are_refused(tmp_path):
    data = b"x" * 100
    for size, offset, text in [
        (2**50, 0, "claims 1125899906842624 bytes"),
        (100, 50, "is damaged"),
        (60, 0, "is damaged"),
    ]:
        one = Entry("config.json", size, 0, 0)
        head = one.local()
        end = len(head) + len(data)
        two = Entry("CURRENT", 10, 0, offset)
        (tmp_path / "a").write_bytes(head + data + directory([one, two], end))
        with pytest.raises(FileFormatError, match=text):
            load_forged(tmp_path / "a")


def test_a_zip_with_a_link_for_an_entry_is_refused(tmp_path):
    path = rezip(tmp_path / "a")
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("state-0.safetensors")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FileFormatError):
        load_forged(path)


def test_what_is_no_zip_is_refused_by_its_first_bytes(tmp_path):
    for data in (b"", b"\x80\x04\x95", b"PK", b"PK\3\4", b"\x08\x07 onnx"):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FileFormatError, match=r"begins with|is cut off"):
            load_forged(tmp_path / "a")


# ------------------------------------------------------------------------------------------------------------ folder


def unpack(tmp_path):
    with zipfile.ZipFile(forge(tmp_path / "a")) as archive:
        archive.extractall(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.parametrize("name", ["CURRENT", "manifest.json", "config.json", "weights.safetensors"])
def test_a_link_in_a_folder_is_refused(tmp_path, name):
    tree = unpack(tmp_path)
    (tree / name).rename(tmp_path / "outside")
    (tree / name).symlink_to(tmp_path / "outside")
    with pytest.raises(FileFormatError, match=f"'{name}' is a link, and links are not followed"):
        load_forged(tree)


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path, monkeypatch, kind):
    tree = unpack(tmp_path)
    (tree / "config.json").unlink()
    if kind == "pipe":
        os.mkfifo(tree / "config.json")
    elif kind == "folder":
        (tree / "config.json").mkdir()
    else:
        monkeypatch.chdir(tree)  # the path of a socket has 108 bytes
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("config.json")
    with pytest.raises(FileFormatError, match=r"'config.json' is not a plain file"):
        load_forged(tree)


def test_a_device_is_refused():
    with pytest.raises(FileFormatError, match="'zero' is not a plain file"):
        load_forged("/dev/zero")


@pytest.mark.parametrize(
    "text", ["../manifest.json", "manifest-01.json", "config.json", "/etc/passwd", "manifest.json\0"]
)
def test_a_current_that_points_elsewhere_is_refused(tmp_path, text):
    tree = unpack(tmp_path)
    (tree / "CURRENT").write_text(f"{text} {'0' * 64}\n")
    with pytest.raises(FileFormatError, match="CURRENT is damaged"):
        load_forged(tree)


def test_a_large_sparse_file_is_refused_before_it_is_read(tmp_path):
    tree = unpack(tmp_path)
    for name in ("CURRENT", "manifest.json", "config.json", "weights.safetensors"):
        size = (tree / name).stat().st_size
        os.truncate(tree / name, 2**40)
        with pytest.raises(FileFormatError, match="has 1099511627776 bytes"):
            load_forged(tree)
        os.truncate(tree / name, size)


# ------------------------------------------------------------------------------------------------------------- fuzz


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_signed_nonsense_is_refused_or_is_exactly_what_the_table_says(tmp_path_factory, data):
    names = ["config.json", "positions-0.json", "weights.safetensors", "raw"]
    name = data.draw(st.sampled_from(names))
    whole = bytearray(part(WEIGHTS) if name == "weights.safetensors" else b'{"format": "txl", "a": [1, {"b": 2.5}]}')
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        cut = data.draw(st.integers(0, 3))
        whole[at : at + cut] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"[", b"{}", b"1e9", b'"', b",", b"9" * 20])
        )
    path = tmp_path_factory.mktemp("fuzz") / "a"
    forged = forge(path, raw=bytes(whole)) if name == "raw" else forge(path, {name: bytes(whole)})
    try:
        bundle = load_forged(forged)
    except FileFormatError:
        return
    assert isinstance(bundle, Bundle)
    (array,) = bundle.tensors["weights"].values()
    assert (array.shape, array.dtype) == ((2, 3), np.float32)
    assert np.isfinite(array).all()


@settings(max_examples=300, deadline=None)
@given(tail=st.binary(max_size=300), n=st.integers(0, 3))
def test_a_nonsense_zip_directory_is_refused(tmp_path_factory, tail, n):
    path = tmp_path_factory.mktemp("fuzz") / "a"
    buffer = io.BytesIO(b"PK\3\4" + b"PK\1\2" * n + tail + b"PK\5\6" + tail[:16].ljust(16, b"\0") + b"\0\0")
    path.write_bytes(buffer.getvalue())
    with pytest.raises(FileFormatError):
        load_forged(path)

"""Kept fits: what was finished is found again, and nothing else is."""

import pytest

from txl_ts.bench.kept import KeptFits

OF = {"task": "recall", "seed": 1, "training": {"n_updates": 3, "rate": 1e-3}}


def test_a_second_call_finds_what_the_first_one_kept_and_to_the_same_digits(tmp_path):
    kept = KeptFits(tmp_path / "new", "memory").keep(OF, [{"score": 1 / 3, "n": 2}])
    again = KeptFits(tmp_path / "new", "memory")
    assert again.find(dict(reversed(OF.items()))) == kept == [{"score": 0.3333333, "n": 2}]
    assert again.find(OF | {"seed": 2}) is None


@pytest.mark.parametrize("other", [{"training": {"n_updates": 4, "rate": 1e-3}}, {"width": 8}])
def test_fits_of_other_settings_are_not_found(tmp_path, other):
    KeptFits(tmp_path, "memory").keep(OF, 1.0)
    assert KeptFits(tmp_path, "memory").find(OF | other) is None


def test_half_a_line_is_dropped_and_the_next_fit_stands_on_a_line_of_its_own(tmp_path):
    KeptFits(tmp_path, "memory").keep(OF, 1.0)
    path = tmp_path / "memory.fits.jsonl"
    path.write_text(path.read_text() + '{"of":{"ta')
    after = KeptFits(tmp_path, "memory")
    after.keep(OF | {"seed": 2}, 2.0)
    again = KeptFits(tmp_path, "memory")
    assert (again.find(OF), again.find(OF | {"seed": 2})) == (1.0, 2.0)
    assert len(path.read_text().splitlines()) == 2


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert KeptFits(None, "memory").keep(OF, 1.0) == 1.0
    assert not list(tmp_path.iterdir())

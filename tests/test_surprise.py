"""Scores of rows: numpy against an oracle, and the model's tensors against numpy, row by row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.oracles import surprise as oracle
from txl_ts.config import ModelConfig
from txl_ts.detector_model import DetectorModel, SensorModel, Tail, unpacked
from txl_ts.errors import ParameterError
from txl_ts.stream.score import Surprise, joint_surprise, log_survival, normal_scores, surprises

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
C = 3


def tiny(surprise, *, independent=False):
    torch.manual_seed(0)
    config = ModelConfig(
        h=surprise.horizons[-1],
        quantiles=LEVELS,
        n_channels=1 if independent else C,
        patch_len=2,
        stride=1,
        mem_len=3,
        lookback=4,
        half_life=20,
        d_model=8,
        n_layers=1,
        n_heads=2,
        d_ff=8,
    )
    core = SensorModel(config)
    with torch.no_grad():
        for weight in core.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    return DetectorModel(core, surprise, independent=independent, n_channels=C).eval()


KINDS = {
    "surprise": Surprise(horizons=(1, 3), scale=(1.0, 0.5, 2.0), warm_rows=5),
    "smoothed": Surprise(scale=(1.0, 0.5, 2.0), smooth=2.5, warm_rows=5, judged=(True, True, False)),
    "deviation": Surprise(kind="deviation", horizons=(2,), scale=(1.0, 0.5, 2.0), smooth=4.0, warm_rows=3),
    "novelty": Surprise(kind="novelty", horizons=(1, 4), scale=(3.0, 2.0, 9.0), warm_rows=4, span=60),
    "level": Surprise(kind="level", scale=(0.5, 0.3, 0.2), smooth=3.0, warm_rows=4, span=20),
}


def rows(seed=0, n=160):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, C)).astype(np.float32)
    x[70:90, 1] += 6
    x[100:110, 0] = np.nan
    x[120] = np.nan
    x[rng.random(x.shape) < 0.05] = np.nan
    return x


def by_numpy(surprise, x, y):
    """Score rows x (T, C) one by one from the forecasts y (T, h, C, Q) that followed them."""
    state, score, parts = surprise.open(), [], []
    for row, said in zip(x.tolist(), y, strict=True):
        values = {str(c): None if math.isnan(value) else value for c, value in enumerate(row)}
        found, state = surprise.step(values, state)
        state = surprise.note(said, LEVELS, state)
        surprise.check(state, n_columns=C)
        score.append(found.value)
        parts.append([found.sensors.get(str(c), math.nan) for c in range(C)])
    return np.array(score), np.array(parts)


# ------------------------------------------------------------------------------------------------------------- formulas


def test_normal_scores_are_those_of_the_oracle():
    rng = np.random.default_rng(0)
    for _ in range(200):
        q = np.sort(rng.normal(size=5)) * 10 ** rng.uniform(-3, 3)
        x, least = float(rng.normal() * 10 ** rng.uniform(-3, 3)), float(10 ** rng.uniform(-4, 1))
        (found,) = normal_scores(np.array([x]), q[None], LEVELS, floor=least)
        assert found == pytest.approx(oracle.normal_score(x, q, LEVELS, least), rel=1e-9)


def test_parts_and_their_joint_score_are_within_what_the_bounds_allow():
    z = np.linspace(-12, 12, 97)
    # The upper bound of Mills' ratio lies within .03 of −log10 p.
    assert np.abs(surprises(z) - [oracle.part(one) for one in z]).max() < 0.03
    rng = np.random.default_rng(1)
    for n in (2, 5, 40):
        parts = rng.exponential(size=(300, n)) / math.log(10)
        wanted = np.array([oracle.fisher(one) for one in parts])
        # Wilson's and Hilferty's cube root is good to about .05 in −log10 p here.
        assert np.abs(joint_surprise(parts) - wanted).max() < 0.08


def test_one_sensor_far_out_shows_among_fifty_and_so_do_fifty_that_are_halfway():
    usual = np.full(50, 0.3)
    one, many = usual.copy(), np.full(50, 0.8)
    one[7] = 25.0
    assert joint_surprise(one) > 4
    assert joint_surprise(many) > 4
    assert joint_surprise(usual) < 0.3


def test_scores_grow_without_end_and_stay_finite():
    q = np.array([[-1.0, -0.5, 0.0, 0.5, 1.0]])
    x = np.array([10.0 ** np.arange(-3, 15)]).T
    z = normal_scores(x, np.broadcast_to(q, (len(x), 1, 5)), LEVELS)[:, 0]
    assert (np.diff(z) > 0).all()
    assert np.isfinite(surprises(z)).all()
    assert np.isfinite(log_survival(np.array([-1e6, 1e6]))).all()


def test_a_sensor_that_never_moved_is_not_infinitely_surprising():
    flat = np.zeros((1, 5))
    assert normal_scores(np.array([1.0]), flat, LEVELS, floor=0.5)[0] == pytest.approx(2.0, rel=0.1)


def test_what_is_missing_has_no_part_and_a_row_without_any_has_no_score():
    assert math.isnan(joint_surprise(np.array([np.nan, np.nan])))
    assert normal_scores(np.array([np.nan]), np.zeros((1, 5)), LEVELS).tolist() == pytest.approx([np.nan], nan_ok=True)
    for surprise in KINDS.values():
        score, parts = by_numpy(surprise, rows(), np.zeros((160, surprise.horizons[-1], C, 5), np.float32))
        assert math.isnan(score[120])
        assert np.isnan(parts[100:110, 0]).all()
        assert not np.isnan(score[100:110]).any()
        assert np.isnan(score[: surprise.warm_rows]).all()


def test_novelty_is_the_distance_from_the_leaking_range_of_all_rows_before():
    surprise = replace(KINDS["novelty"], warm_rows=None, span=30)
    x = rows(3)
    unsaid = np.full((len(x), 4, C, 5), np.nan, np.float32)
    _, found = by_numpy(surprise, x, unsaid)
    for c, scale in enumerate(surprise.scale):
        means = oracle.weighted_means(x[:, c].astype(float), 11.0)
        wanted = np.fmax(oracle.novelty(x[:, c].astype(float), scale, 30), oracle.novelty(means, scale, 30))
        np.testing.assert_allclose(found[:, c], wanted, rtol=1e-6, atol=1e-9)


def test_smoothed_parts_are_weighted_means_of_the_parts():
    said = np.random.default_rng(2).normal(size=(160, 1, C, 5)).astype(np.float32)
    said.sort(axis=-1)
    plain = replace(KINDS["smoothed"], smooth=0.0, judged=None, warm_rows=1)
    _, parts = by_numpy(plain, rows(), said)
    _, found = by_numpy(replace(plain, smooth=2.5), rows(), said)
    for c in range(C):
        np.testing.assert_allclose(found[:, c], oracle.weighted_means(parts[:, c], 2.5), rtol=1e-9)


def test_a_level_does_not_follow_a_sensor_that_is_off():
    surprise = Surprise(kind="level", scale=1.0, span=10)
    x = np.r_[np.zeros(30), np.full(300, 5.0)][:, None].repeat(C, axis=1).astype(np.float32)
    score, _ = by_numpy(surprise, x, np.zeros((330, 1, C, 5), np.float32))
    assert score[-1] == pytest.approx(5.0)


def test_settings_survive_json_and_others_are_refused():
    for surprise in KINDS.values():
        assert Surprise.from_json(surprise.to_json()) == surprise
    with pytest.raises(ValueError, match="scale"):
        Surprise.from_json({**KINDS["surprise"].to_json(), "scale": "a"})
    with pytest.raises(ParameterError, match="increasing"):
        Surprise(horizons=(3, 1))
    with pytest.raises(ParameterError, match="horizons=\\(1, 3\\) look 3 rows ahead"):
        KINDS["surprise"].note(np.zeros((1, C, 5), np.float32), LEVELS, KINDS["surprise"].open())


# -------------------------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("independent", [False, True])
def test_the_model_scores_as_numpy_does_row_by_row(kind, independent):
    model, x = tiny(KINDS[kind], independent=independent), rows()
    with torch.inference_mode():
        answer, _ = model(torch.from_numpy(x)[None], model.init_state(1))
    y, score, parts, _ = (one[0] for one in unpacked(answer.numpy()))
    wanted, wanted_parts = by_numpy(KINDS[kind], x, y)
    # float32 against float64: differences of ranges lose digits, relative to the largest score none that matter.
    for found, exact in ((score, wanted), (parts, wanted_parts)):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * max(1.0, np.nanmax(np.abs(exact))))
    assert np.isfinite(score).sum() > 120


@pytest.mark.parametrize("tail", [None, (0.2, 0.7), (0.0, 0.7), (-0.3, 0.7)])
def test_p_values_are_those_of_the_calibration(tail):
    from txl_ts.calibration.tail import gpd_survival

    scores = np.sort(np.random.default_rng(4).exponential(size=337)).astype(np.float32).astype(float)
    model = tiny(KINDS["surprise"])
    law = None if tail is None else Tail(scores[-34], *tail, 34 / 338)
    model.calibrate(scores, law)
    asked = np.concatenate([scores, scores + 1e-3, [-1.0, 0.0, 50.0]]).astype(np.float32)
    found = model._p_values(torch.from_numpy(asked)[None]).numpy()[0]
    wanted = (1 + (scores[:, None] >= asked.astype(float)).sum(axis=0)) / 338
    if law is not None:
        beyond = law.share * gpd_survival(asked.astype(float) - law.start, shape=tail[0], scale=tail[1])
        wanted = np.where(asked > np.float32(law.start), beyond, wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-12)


def test_an_absurd_value_leaves_earlier_scores_and_other_lanes_as_they_are():
    for kind, surprise in KINDS.items():
        model = tiny(surprise)
        calm = np.stack([rows(1), rows(2)])
        for bad in (np.nan, np.inf, 1e30, np.finfo(np.float32).max):
            wild = calm.copy()
            wild[0, 100:] = bad
            with torch.inference_mode():
                a, _ = model(torch.from_numpy(calm), model.init_state(2))
                b, state = model(torch.from_numpy(wild), model.init_state(2))
            assert torch.equal(a[0, :100].nan_to_num(), b[0, :100].nan_to_num()), kind
            assert torch.equal(a[1].nan_to_num(), b[1].nan_to_num()), kind
            assert all(bool(one.isfinite().all()) for one in state.values()), kind

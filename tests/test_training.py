"""Lanes of segments: what is walked, what is asked, what is carried, what is kept."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_squared_error

from txl_ts.config import ModelConfig
from txl_ts.embeddings import Units
from txl_ts.errors import FileFormatError, ParameterError, ShapeError, TrainingError
from txl_ts.model import TXLModel
from txl_ts.training import Checkpoint, Origins, Pieces, Trainer, TrainingSettings
from txl_ts.training.pieces import schedule
from txl_ts.training.segments import segments

SIZES = {
    "h": 3,
    "quantiles": (0.1, 0.5, 0.8),
    "patch_len": 4,
    "stride": 3,
    "mem_len": 5,
    "lookback": 7,
    "half_life": 24.0,
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 10,
}


def make_model(seed=0, **changes):
    """A model whose every weight counts: what starts at zero is drawn too."""
    model = TXLModel(ModelConfig(**{**SIZES, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model


def pieces_of(lengths, values=None, units=None):
    """Pieces that stand side by side in one array, as series do: what comes after a piece is there to be leaked."""
    stop = np.cumsum(lengths)
    first = stop - lengths
    if values is None:
        rng = np.random.default_rng(0)
        values = rng.normal(size=stop[-1] + 9) + np.sin(np.arange(stop[-1] + 9) / 3)
    units = np.ones(len(lengths)) if units is None else units
    return Pieces(np.asarray(values, np.float32), first, stop, np.asarray(units, np.float32))


def origins_of(lengths, warm=4, *, full=False, **kwargs):
    pieces = pieces_of(np.asarray(lengths), **kwargs)
    return Origins(pieces, np.minimum(pieces.first + warm, pieces.stop), full=full)


QUICK = {"max_epochs": 2, "batch_size": 4, "segment_len": 4, "learning_rate": 1e-2, "least_steps": 5}


# ------------------------------------------------------------------------------------------------------------- schedule


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=12),
    n_lanes=st.integers(1, 5),
    n_passes=st.integers(1, 3),
    visits=st.integers(1, 8),
    stride=st.integers(1, 5),
    jump=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_schedule_walks_every_piece_from_end_to_end(lengths, n_lanes, n_passes, visits, stride, jump, seed):
    pieces, n_rows = pieces_of(np.array(lengths)), visits * stride
    rng = np.random.default_rng(seed)
    steps = list(schedule(pieces, n_lanes=n_lanes, n_passes=n_passes, n_rows=n_rows, stride=stride, rng=rng, jump=jump))
    begun = np.zeros(len(lengths), int)
    for lane in range(n_lanes):
        walked = [(int(s.piece[lane]), int(s.row[lane]), int(s.begun[lane])) for s in steps]
        at = 0
        while at < len(walked) and walked[at][0] >= 0:
            piece, row, begin = walked[at]
            assert row == begin, "a piece is entered where it begins"
            begun[piece] += 1
            first, stop = pieces.first[piece], pieces.stop[piece]
            skip = begin - first
            longest = n_rows if jump and stop - first >= 4 * n_rows else stride
            assert 0 <= skip < max(longest, 1)
            assert skip <= (stop - first) // 4 or jump
            n_segments = max(1, math.ceil((stop - 1 - begin) / n_rows))  # the last row has no target
            expected = [(piece, begin + k * n_rows, begin) for k in range(n_segments)]
            assert walked[at : at + n_segments] == expected
            at += n_segments
        assert all(piece == -1 for piece, _, _ in walked[at:]), "a lane that ran out stays idle"
    assert (begun == n_passes).all(), "each piece is entered once a pass"


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=8),
    n_lanes=st.integers(1, 4),
    h=st.integers(1, 5),
    warm=st.integers(0, 9),
    full=st.booleans(),
)
def test_segments_ask_every_row_once_and_never_beyond_the_end_of_its_piece(lengths, n_lanes, h, warm, full):
    """Values are their own positions: a target tells which row it was."""
    n = sum(lengths)
    origins = origins_of(lengths, warm, full=full, values=np.arange(n + 9))
    pieces, n_rows = origins.pieces, 12
    steps = schedule(
        pieces, n_lanes=n_lanes, n_passes=1, n_rows=n_rows, stride=1, jump=False, rng=np.random.default_rng(0)
    )
    asked = np.zeros((n, h), int)
    end_of = np.repeat(pieces.stop, lengths)
    picked = torch.arange(n_rows)

    class Scale:  # targets are counted from the lane's shift: here from 0, and every row is known
        shift = torch.zeros(n_lanes, 1, 1)
        known = torch.ones(n_lanes, n_rows, 1, dtype=torch.bool)
        units = Units()

    for segment in segments(origins, steps, n_rows=n_rows, h=h):
        target, usable = segment.targets(picked, Scale)
        assert target.shape == usable.shape == (n_lanes, n_rows, h, 1)
        for lane, row, step, _ in usable.nonzero().tolist():
            source = int(segment.x[lane, row, 0])
            assert int(target[lane, row, step, 0]) == source + step + 1 < end_of[source]
            asked[source, step] += 1
        assert segment.x[~segment.x.isnan()].numel() <= n
    expected = np.zeros((n, h), int)
    for stop, begin in zip(pieces.stop, origins.first, strict=True):
        for row in range(begin, stop):
            for step in range(h):
                within = row + step + 1 < stop
                expected[row, step] = within and (not full or row + h < stop)
    np.testing.assert_array_equal(asked, expected)


def test_idle_lanes_ask_nothing_and_change_no_gradient():
    lengths = [60, 10]
    steps = list(
        schedule(pieces_of(np.array(lengths)), n_lanes=2, n_passes=1, n_rows=12, stride=3, rng=np.random.default_rng(1))
    )
    idle = [s for s in steps if (s.piece < 0).any()]
    assert idle
    for segment in segments(origins_of(lengths), iter(idle), n_rows=12, h=3):
        lane = int((~segment.origin.any(dim=1)).nonzero()[0])
        assert segment.x[lane].isnan().all()
        assert bool(segment.start[lane])
        assert float(segment.unit[lane]) == 1


def test_a_segment_has_whole_strides():
    model = make_model()
    with pytest.raises(ShapeError, match="multiple of stride=3 rows, got 7"):
        model.forward_visits(torch.zeros(1, 7, 1), model.init_visits(1, n_phases=1), torch.arange(1))


# --------------------------------------------------------------------------------------------------------------- memory


def spied(trainer):
    """Let a trainer tell of each training step: the steps of its schedule, the segment, its forecasts."""
    told, original = [], trainer._loss

    def loss(segment, front, z, picked):
        if trainer.model.training:
            told.append((segment, front.scale.restore(z).detach(), picked))
        return original(segment, front, z, picked)

    trainer._loss = loss
    return told


@pytest.mark.parametrize("batch_size", [3, 12])
def test_training_forecasts_are_those_of_one_long_forward_from_the_begin_of_the_piece(batch_size):
    """The memory is carried from segment to segment and fresh at each new piece; no dropout, no learning."""
    model = make_model(dropout=0.0)
    origins = origins_of([50, 31, 44, 7, 90, 12])
    trainer = Trainer(
        model, origins, None, TrainingSettings(**{**QUICK, "batch_size": batch_size, "learning_rate": 1e-30})
    )
    told = spied(trainer)
    before = copy.deepcopy(model.state_dict())
    trainer.run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    values = origins.pieces.values
    lanes = {lane: [] for lane in range(trainer.n_lanes)}
    n_compared, n_carried = 0, 0
    for segment, y, picked in told:
        for lane in lanes:
            x = segment.x[lane, :, 0]
            if x.isnan().all():
                continue
            lanes[lane] = x if bool(segment.start[lane]) else torch.cat([lanes[lane], x])
            n_carried += not bool(segment.start[lane])
            whole = lanes[lane]
            with torch.inference_mode():
                long, _ = model(whole[None, :, None], model.init_state(1))
            long = long[0, len(whole) - len(x) :].index_select(0, picked)
            there = segment.origin[lane].index_select(0, picked)
            torch.testing.assert_close(y[lane][there], long[there], rtol=1e-5, atol=1e-5, equal_nan=True)
            n_compared += int(there.sum())
    assert n_compared > 300
    assert n_carried > 20
    assert np.isfinite(values).all()


def test_without_carried_memory_only_the_first_segment_of_a_piece_is_the_same():
    told = {}
    for carry in (True, False):
        model = make_model(dropout=0.0)
        rows = Origins(pieces_of(np.array([60])), np.array([4]))
        trainer = Trainer(model, rows, None, TrainingSettings(**{**QUICK, "learning_rate": 1e-30}, carry_memory=carry))
        told[carry] = spied(trainer)
        trainer.run()
    same = [torch.allclose(a[1], b[1], equal_nan=True) for a, b in zip(told[True], told[False], strict=True)]
    starts = [bool(segment.start[0]) for segment, _, _ in told[True]]
    assert same == starts


def test_an_epoch_visits_each_piece_by_some_phases_and_keeps_the_batch_small():
    model = make_model()
    trainer = Trainer(model, origins_of([300] * 9), None, TrainingSettings(**{**QUICK, "batch_size": 4}))
    assert trainer.n_lanes * trainer.n_phases <= 4
    assert trainer.n_steps >= QUICK["least_steps"]
    few = Trainer(model, origins_of([300]), None, TrainingSettings(**{**QUICK, "batch_size": 4}))
    assert (few.n_lanes, few.n_phases) == (1, 3)


# ----------------------------------------------------------------------------------------------------------- validation


def validation_by_hand(model, origins, unit):
    """Each piece in one long forward; each origin's horizon by itself."""
    h, quantiles = model.config.h, model.config.quantiles
    y_true, y_pred = [], []
    for first, stop, begin in zip(origins.pieces.first, origins.pieces.stop, origins.first, strict=True):
        x = origins.pieces.values[first:stop]
        with torch.inference_mode():
            y = model.eval()(torch.from_numpy(x)[None, :, None], model.init_state(1))[0][0, :, :, 0].double().numpy()
        for row in range(begin - first, stop - first - 1):
            for step in range(min(h, stop - first - row - 1)):
                if (not origins.full or row + h < stop - first) and np.isfinite(x[row + step + 1]):
                    y_true.append(float(x[row + step + 1]))
                    y_pred.append(y[row, step])
    y_true, y_pred = np.array(y_true), np.array(y_pred)
    losses = [2 * mean_pinball_loss(y_true, y_pred[:, i], alpha=q) / unit for i, q in enumerate(quantiles)]
    point = y_pred[:, quantiles.index(0.5)]
    return np.mean(losses), mean_squared_error(y_true, point), mean_absolute_error(y_true, point)


@pytest.mark.parametrize("full", [True, False])
def test_validation_is_the_mean_over_all_rows_that_may_forecast(full):
    origins = origins_of([70, 25, 41], warm=12, full=full, units=[2, 2, 2])
    origins.pieces.values[[20, 33, 90]] = np.nan
    model = make_model()
    trainer = Trainer(model, origins_of([30]), origins, TrainingSettings(**QUICK))
    loss, mse, mae = validation_by_hand(model, origins, unit=2)
    assert trainer.validation_loss() == pytest.approx(loss, rel=1e-5)
    assert trainer.validation_errors() == pytest.approx((mse, mae), rel=1e-5)


def test_without_validation_rows_the_last_weights_are_kept():
    model = make_model()
    trainer = Trainer(model, origins_of([60, 40]), None, TrainingSettings(**QUICK))
    history = trainer.run()
    assert (history.validation, history.best_epoch, history.epochs) == ([], 2, 2)
    assert math.isnan(trainer.validation_loss())
    assert not model.training


def test_the_weights_of_the_best_epoch_are_kept(monkeypatch):
    losses = iter([5.0, 4.0, 2.0, 3.0, 2.5])
    seen = []
    model = make_model()
    trainer = Trainer(
        model, origins_of([60, 40]), origins_of([30]), TrainingSettings(**{**QUICK, "max_epochs": 4}, patience=2)
    )

    def validation_loss(self):
        seen.append(copy.deepcopy(self.model.state_dict()))
        return next(losses)

    monkeypatch.setattr(Trainer, "validation_loss", validation_loss)
    history = trainer.run()
    assert (history.best_epoch, history.validation) == (2, [5.0, 4.0, 2.0, 3.0, 2.5])
    assert all(torch.equal(tensor, seen[2][name]) for name, tensor in model.state_dict().items())
    assert any((tensor != seen[4][name]).any() for name, tensor in model.state_dict().items())


def test_patience_ends_a_run_and_epoch_0_may_be_the_best(monkeypatch):
    losses = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(Trainer, "validation_loss", lambda self: next(losses))
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(
        model, origins_of([60]), origins_of([30]), TrainingSettings(**{**QUICK, "max_epochs": 9}, patience=3)
    )
    history = trainer.run()
    assert (history.epochs, history.best_epoch) == (3, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# ------------------------------------------------------------------------------------------------------------- learning


def test_rows_beyond_the_end_of_the_training_pieces_are_never_seen():
    """The same array with other values behind each piece's end gives the same weights to the bit."""
    weights = []
    for poison in (0.0, 1e6, np.nan):
        pieces = pieces_of(np.array([60, 40, 50]))
        cut = pieces.stop - np.array([7, 5, 0])
        values = pieces.values.copy()
        for a, b in zip(cut, pieces.stop, strict=True):
            values[a:b] = poison
        torch.manual_seed(0)
        model = make_model(dropout=0.1)
        rows = Origins(Pieces(values, pieces.first, cut, pieces.unit), pieces.first + 4)
        Trainer(model, rows, None, TrainingSettings(**QUICK)).run()
        weights.append(model.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(tensor, weights[0][name]) for name, tensor in other.items())


def test_the_same_seed_trains_the_same_weights_and_another_seed_others():
    def trained(seed):
        torch.manual_seed(seed)
        model = make_model(dropout=0.1)
        Trainer(model, origins_of([60, 40]), None, TrainingSettings(**QUICK, random_state=seed)).run()
        return torch.cat([tensor.flatten() for tensor in model.state_dict().values()])

    a, b, c = trained(0), trained(0), trained(1)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_rate_warms_up_and_falls_to_nothing():
    settings_ = TrainingSettings(**{**QUICK, "max_epochs": 10})
    trainer = Trainer(make_model(), origins_of([60, 40]), None, settings_)
    rates = []
    trainer.run(lambda: rates.append(trainer.optimiser.param_groups[0]["lr"]))
    rates = np.array(rates)
    top = int(rates.argmax())
    assert 0.05 < top / len(rates) < 0.2
    assert rates[0] < 0.2 * rates[top]
    assert rates[top] > 0.9 * 1e-2
    assert rates[-1] < 0.01 * 1e-2
    assert all(0 <= group["lr"] <= rates[-1] for group in trainer.optimiser.param_groups)


@pytest.mark.filterwarnings("error")
def test_a_loss_that_is_not_finite_ends_the_run_by_name():
    model = make_model()
    with torch.no_grad():
        model.head.linear.weight.fill_(torch.inf)
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) in epoch 1.*learning_rate \(it is 0.01\)"):
        Trainer(model, origins_of([60]), None, TrainingSettings(**QUICK)).run()


@pytest.mark.parametrize("loss", ["pinball", "squared"])
def test_squared_errors_leave_the_closed_form_of_the_linear_path(loss):
    """For squared errors it is the optimum; for others it is a beginning."""
    model = make_model()
    before = copy.deepcopy(model.linear_path.state_dict())
    Trainer(model, origins_of([60, 40]), None, TrainingSettings(**QUICK, loss=loss)).run()
    kept = all(torch.equal(tensor, before[name]) for name, tensor in model.linear_path.state_dict().items())
    assert kept == (loss == "squared")


def test_missing_values_anywhere_do_not_disturb_training():
    rows = origins_of([60, 40, 50])
    rng = np.random.default_rng(0)
    rows.pieces.values[rng.random(len(rows.pieces.values)) < 0.3] = np.nan
    rows.pieces.values[60:100] = np.nan  # a whole piece
    model = make_model()
    history = Trainer(model, rows, None, TrainingSettings(**QUICK)).run()
    assert np.isfinite(history.train).all()
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_no_pieces_at_all_train_nothing():
    nothing = Origins(
        Pieces(np.zeros(0, np.float32), *np.zeros((2, 0), np.int64), np.zeros(0, np.float32)), np.zeros(0)
    )
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    Trainer(model, nothing, None, TrainingSettings(**QUICK)).run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_memory_learns_what_no_window_can_hold():
    """Blocks of six drawn numbers repeat: the next was seen five visits ago; look-back and patch hold one row."""
    rng = np.random.default_rng(0)
    block = rng.normal(size=(40, 6))
    values = np.concatenate([np.tile(row, 8) for row in block])
    lengths = np.full(40, 48)
    sizes = {
        "h": 1,
        "quantiles": (0.5,),
        "patch_len": 1,
        "stride": 1,
        "lookback": 1,
        "mem_len": 8,
        "scaler": "standard",
    }
    torch.manual_seed(0)
    model = TXLModel(ModelConfig(**{**SIZES, **sizes, "scaler": "standard", "d_model": 16, "d_ff": 32}))
    rows = origins_of(lengths, warm=8, values=np.append(values, np.zeros(9)))
    best = TrainingSettings(max_epochs=12, batch_size=20, segment_len=24, learning_rate=1e-2, least_steps=20)
    trainer = Trainer(model, rows, rows, best)
    history = trainer.run()
    assert min(history.validation) < 0.5 * history.validation[0]  # 0.32 when this was written


# ---------------------------------------------------------------------------------------------------------- checkpoints


class Interrupted(Exception):  # noqa: N818
    pass


def trainer_for(*, validation, **changes):
    torch.manual_seed(0)
    model = make_model(dropout=0.2)
    rows = origins_of([25, 30]) if validation else None
    return Trainer(model, origins_of([30, 20, 25]), rows, TrainingSettings(**{**QUICK, **changes}))


def finish(trainer, keeper=None):
    if keeper is None:
        trainer.run()
    else:
        trainer.run(lambda: keeper.after_step(trainer))
    return trainer


def same_run(a, b):
    assert a.progress.history == b.progress.history
    for name, tensor in a.model.state_dict().items():
        assert torch.equal(tensor, b.model.state_dict()[name]), name


def interrupt(folder, after, *, every, identity=None, **kwargs):
    """Run to the callback number ``after`` and stop there, as a killed process would."""
    trainer = trainer_for(**kwargs)
    keeper = Checkpoint(folder, identity or {"run": 1}, every=every)
    calls = []

    def after_step():
        keeper.after_step(trainer)
        calls.append(trainer.progress.step)
        if len(calls) == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        trainer.run(after_step)
    return trainer


def resumed(folder, *, every=100, identity=None, **kwargs):
    trainer = trainer_for(**kwargs)
    torch.manual_seed(12345)  # another process stands elsewhere in its random numbers
    keeper = Checkpoint(folder, identity or {"run": 1}, every=every)
    return trainer, keeper, keeper.resume(trainer)


@pytest.mark.parametrize(("validation", "every"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("stop", ["first", "middle", "last step", "end of epoch", "second epoch"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, validation, every, stop):
    whole = finish(trainer_for(validation=validation))
    n = whole.n_steps
    after = {"first": 1, "middle": n // 2, "last step": n, "end of epoch": n + 1, "second epoch": n + 4}[stop]
    interrupt(tmp_path / "run", after, every=every, validation=validation)
    trainer, keeper, found = resumed(tmp_path / "run", validation=validation)
    assert found == (after >= every)
    if not found:
        trainer = trainer_for(validation=validation)
    same_run(finish(trainer, keeper), whole)


def test_a_run_may_be_stopped_again_and_again(tmp_path):
    whole = finish(trainer_for(validation=True))
    interrupt(tmp_path / "run", 2, every=1, validation=True)
    for _ in range(40):
        trainer, keeper, found = resumed(tmp_path / "run", every=1, validation=True)
        assert found
        calls = []

        def after_step(trainer=trainer, keeper=keeper, calls=calls):
            keeper.after_step(trainer)
            calls.append(1)
            if len(calls) == 4:
                raise Interrupted

        try:
            trainer.run(after_step)
        except Interrupted:
            continue
        break
    same_run(trainer, whole)


def test_a_finished_run_is_taken_up_finished(tmp_path):
    whole = trainer_for(validation=True)
    finish(whole, Checkpoint(tmp_path / "run", {"run": 1}))
    trainer, keeper, found = resumed(tmp_path / "run", validation=True)
    assert found
    same_run(finish(trainer, keeper), whole)


@pytest.mark.parametrize("loss", ["squared", "mase", "owa"])
@pytest.mark.parametrize("mem_len", [5, 0])
def test_every_loss_and_a_model_without_memory_go_on_to_the_same_bits(tmp_path, loss, mem_len, monkeypatch):
    monkeypatch.setitem(SIZES, "mem_len", mem_len)
    whole = finish(trainer_for(validation=True, loss=loss))
    interrupt(tmp_path / "run", 4, every=1, validation=True, loss=loss)
    trainer, keeper, found = resumed(tmp_path / "run", validation=True, loss=loss)
    assert found
    same_run(finish(trainer, keeper), whole)


def test_checkpointing_changes_no_number(tmp_path):
    whole = finish(trainer_for(validation=True))
    kept = finish(trainer_for(validation=True), Checkpoint(tmp_path / "run", {"run": 1}, every=2))
    same_run(kept, whole)


def test_an_empty_or_missing_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        assert resumed(tmp_path / folder, validation=True)[2] is False


def test_the_checkpoint_of_another_run_is_refused_with_what_differs(tmp_path):
    interrupt(tmp_path / "run", 2, every=1, validation=True, identity={"rows": "a", "loss": "pinball"})
    with pytest.raises(ParameterError, match=r"belongs to another run: rows was 'a' and is 'b'.*another folder"):
        resumed(tmp_path / "run", validation=True, identity={"rows": "b", "loss": "pinball"})


@pytest.mark.parametrize("kind", ["flipped", "torn", "gone", "no checkpoint"])
def test_a_damaged_checkpoint_is_refused_and_no_new_run_begins_over_it(tmp_path, kind):
    folder = tmp_path / "run"
    interrupt(folder, 2, every=1, validation=True)
    weights = max(folder.glob("weights-*.safetensors"))
    if kind == "flipped":
        data = bytearray(weights.read_bytes())
        data[-3] ^= 4
        weights.write_bytes(data)
    elif kind == "torn":
        weights.write_bytes(weights.read_bytes()[:-9])
    elif kind == "gone":
        weights.unlink()
    else:
        for path in folder.iterdir():
            path.unlink()
        (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileFormatError):
        resumed(folder, validation=True)


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    whole = finish(trainer_for(validation=True))
    interrupt(tmp_path / "run", 3, every=1, validation=True)
    litter = tmp_path / "run" / "weights-99.safetensors"
    litter.write_bytes(b"half a file")
    trainer, keeper, found = resumed(tmp_path / "run", validation=True)
    assert found
    same_run(finish(trainer, keeper), whole)


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("learning_rate", 0.0, "learning_rate=0 must be positive"),
        ("weight_decay", -0.1, "weight_decay=-0.1 .*at least 0"),
        ("max_epochs", -1, "max_epochs=-1"),
        ("segment_len", 0, "segment_len=0"),
        ("loss", "maze", "Did you mean 'mase'"),
    ],
)
def test_settings_are_checked_once(name, value, text):
    with pytest.raises(ParameterError, match=text):
        TrainingSettings(**{name: value})

"""Gradients from segment to segment: how far back they go is measured on the rows, not read off a setting."""

import numpy as np
import pytest
import torch

from tests.oracles import mixed_recurrence
from txl_ts.backbone import Backbone
from txl_ts.bench.live_bytes import LiveBytes, peak_bytes
from txl_ts.config import ModelConfig
from txl_ts.detector_model import SensorModel
from txl_ts.errors import ParameterError
from txl_ts.label_model import LabelConfig, LabelModel
from txl_ts.memory import Fifo
from txl_ts.model import TXLModel
from txl_ts.training import (
    Checkpoint,
    LabelRows,
    LabelSettings,
    LabelTrainer,
    Origins,
    Pieces,
    Trainer,
    TrainingSettings,
    label_loop,
    loop,
    sensors,
)
from txl_ts.training.hops import Hops
from txl_ts.training.sensors import SensorRows, SensorTrainer
from txl_ts.training.unroll import unrolled

# One row per token, a fixed scale and no linear path: memory is the only way from segment to segment.
SIZES = {"patch_len": 1, "lookback": 0, "half_life": 8.0, "scaler": "standard"}
NETWORK = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 10}
ALONE = {**SIZES, **NETWORK}
SEGMENT = 3
# The window of both layers reaches 16 rows: five segments. Beside a far memory it reaches two rows: less than one.
MEMORIES = {
    "fifo": {"mem_len": 8},
    "tokens": {"mem_len": 1, "memory": "tokens", "memory_params": {"block": 2}},
    "gated": {"mem_len": 1, "memory": "gated", "memory_params": {"block": 2}},
}


def drawn(model, seed=0):
    """The model with every weight drawn: what starts at zero counts too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * 0.3)
    return model


def label_model(**changes):
    config = LabelConfig(**{**ALONE, "head": "values", "n_outputs": 1, "mem_len": 8, **changes})
    return drawn(LabelModel(config))


def forecaster(model, n_rows, settings):
    values = np.random.default_rng(0).normal(size=n_rows).astype(np.float32)
    pieces = Pieces(values, np.array([0]), np.array([n_rows]), np.ones(1, np.float32))
    return Trainer(model, Origins(pieces, np.array([0])), None, settings)


def labeller(model, n_rows, settings):
    rng = np.random.default_rng(0)
    values, target = (rng.normal(size=(n_rows, 1)).astype(np.float32) for _ in range(2))
    rows = LabelRows(values, target, np.ones(n_rows, np.float32), np.array([0]), np.array([n_rows]))
    return LabelTrainer(model, rows, None, settings)


def detector(model, n_rows, settings):
    values = np.random.default_rng(0).normal(size=(n_rows, 1)).astype(np.float32)
    rows = SensorRows(values, np.zeros(n_rows, np.int8), np.array([0]), np.array([n_rows]), np.ones((1, 1), np.float32))
    return SensorTrainer(model, rows, [1], settings)


FORECASTS = {"h": 1, "quantiles": (0.1, 0.5, 0.9), "stride": 1}
TRAINERS = {
    "forecasts": (loop, forecaster, lambda **how: TXLModel(ModelConfig(**{**ALONE, **FORECASTS, **how}))),
    "labels": (label_loop, labeller, lambda **how: label_model(**how)),
    "sensors": (sensors, detector, lambda **how: SensorModel(ModelConfig(**{**ALONE, **FORECASTS, **how}))),
}


class SeenEnoughError(Exception):
    """Enough steps were seen."""


def reach_of_steps(kind, monkeypatch, *, n_steps, settings=TrainingSettings, memory=None, **how):
    """Train, and give for each step how much the answers of its last segment change with the rows of each segment."""
    module, trainer_of, model_of = TRAINERS[kind]
    model = drawn(model_of(**(memory or MEMORIES["fifo"])))
    cls = LabelSettings if kind == "labels" else TrainingSettings
    how = {"segment_len": SEGMENT, "batch_size": 1, "max_epochs": 1, "least_steps": 1, **how}
    trainer = trainer_of(model, 60, cls(**how))
    name = "forward_rows" if kind == "labels" else "forward_visits"
    forward, rows, answers, found = getattr(model, name), [], [], []

    def watched(x, *args, **kwargs):
        rows.append(x.clone().requires_grad_())
        out = forward(rows[-1], *args, **kwargs)
        answers.append(out[0])
        return out

    def looked_at(model, optimiser, loss, *args, **kwargs):
        gradients = torch.autograd.grad(answers[-1].sum(), rows, allow_unused=True)
        found.append([0.0 if gradient is None else float(gradient.abs().max()) for gradient in gradients])
        if len(found) == n_steps:
            raise SeenEnoughError

    monkeypatch.setattr(model, name, watched)
    monkeypatch.setattr(module, "descend", looked_at)
    with pytest.raises(SeenEnoughError):
        trainer.run()
    return found


# ------------------------------------------------------------------------------------------------------- bptt_segments


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "memory"), [("forecasts", "fifo"), ("sensors", "fifo"), *(("labels", name) for name in MEMORIES)]
)
def test_gradients_reach_exactly_as_many_segments_back_as_a_step_has(kind, memory, k, monkeypatch):
    steps = reach_of_steps(kind, monkeypatch, n_steps=3, memory=MEMORIES[memory], bptt_segments=k)
    for i, sizes in enumerate(steps):
        assert len(sizes) == (i + 1) * k
        assert min(sizes[-k:]) > 0, "all segments of the step, its own the last"
        assert not any(sizes[:-k]), "exactly nothing of the step before"


def test_without_carried_memory_no_step_has_a_past(monkeypatch):
    steps = reach_of_steps("labels", monkeypatch, n_steps=1, bptt_segments=3, carry_memory=False)
    assert steps[0][-1] > 0
    assert not any(steps[0][:-1])


def gradients_of(model, x, *, segment_len):
    state, total = model.init_rows(len(x)), 0.0
    for part in x.split(segment_len, dim=1):
        z, state = model.forward_rows(part, state)
        total = total + z.square().sum()
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_gradient_through_some_segments_is_that_of_one_segment_as_long(memory):
    x = torch.randn(2, 24, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pieces, whole = (
        gradients_of(label_model(**MEMORIES[memory]).double(), x, segment_len=length) for length in (SEGMENT, 24)
    )
    for name, gradient in whole.items():
        # Equal but for the order of sums.
        torch.testing.assert_close(pieces[name], gradient, rtol=1e-9, atol=1e-11, msg=name)


def test_a_step_of_more_segments_makes_fewer_steps_of_the_same_rows():
    counts = [
        labeller(label_model(), 60, LabelSettings(segment_len=3, batch_size=1, least_steps=1, bptt_segments=k))
        for k in (1, 2, 8)
    ]
    assert [trainer.n_steps for trainer in counts] == [20, 10, 3]


def test_a_far_memory_may_learn_from_the_next_segment_of_a_step():
    model = label_model(mem_len=1, memory="tokens", memory_params={"block": 4})
    with pytest.raises(ParameterError, match="segment_len=3 must be longer than the 4 rows"):
        labeller(model, 60, LabelSettings(segment_len=3))
    labeller(model, 60, LabelSettings(segment_len=3, bptt_segments=2))


def test_runs_of_before_are_told_from_others_as_before():
    assert "bptt_segments" not in TrainingSettings().to_json()
    new = TrainingSettings(bptt_segments=2, memory_gradient=(1, 0.5), verbose=True).to_json()
    assert (new["bptt_segments"], new["memory_gradient"], new["verbose"]) == (2, [1, 0.5], False)


# ----------------------------------------------------------------------------------- memory_gradient, memory_grad_clip

WINDOW = 5
SHARES = {
    "all": (1.0, lambda place: 1.0),
    "half": (0.5, lambda place: 0.5),
    "nothing": (0.0, lambda place: 0.0),
    "by place": ((1.0, 0.8, 0.6, 0.4, 0.2), lambda place: (1 - 0.2 * place) if place < WINDOW else 0.0),
}


def backbone_and_segments():
    config = ModelConfig(**{**ALONE, **FORECASTS, "mem_len": WINDOW})
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (3, 2, 7, 4)]
    return drawn(Backbone(config).double()), [part.requires_grad_() for part in tokens]


@pytest.mark.parametrize("share", SHARES)
def test_the_gradient_is_that_of_the_recurrence_as_it_is_written(share):
    """Two hops pass rows that stay in the window: their share counts twice."""
    gradient, by_place = SHARES[share]
    backbone, segments = backbone_and_segments()
    memory, hops, out = Fifo(mem_len=WINDOW), Hops(gradient), []
    state = {f"hidden_{i}": torch.zeros(1, 1, WINDOW + 1, 8, dtype=torch.float64) for i in range(2)}
    state["count"] = torch.zeros(1, 2, dtype=torch.int32)
    for i, part in enumerate(segments):
        state = hops.through(state, hop=i - 1) if i else state
        rings = [(state[f"hidden_{layer}"],) for layer in range(2)]
        y, rings, count, _ = backbone(part[None], rings, state["count"], memory=memory)
        state = {f"hidden_{layer}": ring for layer, (ring,) in enumerate(rings)} | {"count": count}
        out.append(y[0])
    weights = dict(backbone.named_parameters())
    expected = mixed_recurrence.run(segments, weights, n_layers=2, n_heads=2, mem_len=WINDOW, share=by_place)
    torch.testing.assert_close(torch.cat(out), expected, rtol=0, atol=1e-12)
    asked = [*segments, *weights.values()]
    ours, theirs = (torch.autograd.grad(y.square().sum(), asked) for y in (torch.cat(out), expected))
    for one, other in zip(ours, theirs, strict=True):
        # float64; the order of sums differs.
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_half_the_gradient_lies_between_all_and_nothing():
    """No two of the shares above may give the same gradient, or the oracle would judge nothing."""
    found = []
    for gradient, _ in SHARES.values():
        model, x = label_model(mem_len=WINDOW).double(), random_rows(2, 9)
        hops, state, total = Hops(gradient), model.init_rows(2), 0.0
        for i, part in enumerate(x.split(3, dim=1)):
            state = hops.through(state, hop=i - 1) if i else state
            z, state = model.forward_rows(part, state)
            total = total + z.square().sum()
        total.backward()
        found.append(model.backbone.layers[0].attention.key_value.weight.grad)
    distances = [float((a - b).abs().max()) for i, a in enumerate(found) for b in found[:i]]
    assert min(distances) > 1e-6


def random_rows(*shape):
    return torch.randn(*shape, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("part", [None, 0.5], ids=["as it is", "clipped"])
def test_norms_and_clips_are_those_of_a_chain_rule_by_hand(memory, part):
    """Each hop by itself: the gradient of all that was left to the next segment, as one vector, then on through it."""
    pieces = random_rows(2, 9).split(3, dim=1)
    model = label_model(**MEMORIES[memory]).double()
    weights = list(model.parameters())
    norms, by_hand = chained(model, pieces, weights, clip=None)
    if part is not None:
        clip = part * min(norms)
        norms, by_hand = chained(model, pieces, weights, clip=clip)
    hops = Hops(0.7, None if part is None else clip)
    loss, _, _ = unrolled(pieces, model.init_rows(2), forward_of(model), hops)
    ours = torch.autograd.grad(loss, weights)
    assert hops.means() == pytest.approx(norms, rel=1e-9)
    for one, other in zip(ours, by_hand, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def forward_of(model):
    def forward(x, state):
        z, state = model.forward_rows(x, state)
        return z.square().sum(), torch.ones(()), state

    return forward


def chained(model, pieces, weights, *, clip):
    """Norms at both hops, and the gradient of all three segments."""
    forward, starts, ends, losses = forward_of(model), [model.init_rows(2)], [], []
    for x in pieces:
        loss, _, state = forward(x, starts[-1])
        losses.append(loss)
        ends.append(state)
        starts.append({name: t.detach().requires_grad_(t.requires_grad) for name, t in state.items()})
    total, norms, later = [torch.zeros_like(w) for w in weights], [], {}
    for i in (2, 1, 0):
        asked = [t for t in starts[i].values() if t.requires_grad]
        outputs, given = [losses[i], *(ends[i][name] for name in later)], [torch.ones(()).double(), *later.values()]
        found = torch.autograd.grad(outputs, [*weights, *asked], given, allow_unused=True, materialize_grads=True)
        total = [sum(pair) for pair in zip(total, found, strict=False)]
        back = [0.7 * gradient for gradient in found[len(weights) :]]
        if not i:
            break
        norms.insert(0, float(torch.cat([gradient.flatten() for gradient in back]).norm()))
        back = [gradient * min(1, clip / norms[0]) for gradient in back] if clip else back
        later = dict(zip([name for name, t in starts[i].items() if t.requires_grad], back, strict=True))
    return norms, total


def test_norms_of_every_hop_are_in_the_history():
    how = {"segment_len": 3, "batch_size": 1, "max_epochs": 2, "least_steps": 1, "bptt_segments": 3}
    for cls, (_, trainer_of, model_of) in zip(
        (TrainingSettings, LabelSettings, TrainingSettings), TRAINERS.values(), strict=True
    ):
        history = trainer_of(drawn(model_of(mem_len=8)), 60, cls(**how)).run()
        assert np.shape(history.hop_norms) == (2, 2)
        assert np.min(history.hop_norms) > 0
        one = trainer_of(drawn(model_of(mem_len=8)), 60, cls(**{**how, "bptt_segments": 1})).run()
        assert one.hop_norms == []


def test_a_run_that_was_stopped_goes_on_with_the_same_norms(tmp_path):
    how = TrainingSettings(segment_len=3, batch_size=1, max_epochs=2, least_steps=1, bptt_segments=3)

    def trainer(seed=0):
        return forecaster(drawn(TRAINERS["forecasts"][2](mem_len=8), seed), 60, how)

    whole, stopped, again = trainer().run(), trainer(), trainer(seed=3)
    keeper, steps = Checkpoint(tmp_path, {"run": 1}, every=1), []

    def after_step():
        keeper.after_step(stopped)
        steps.append(1)
        if len(steps) == 4:
            raise SeenEnoughError

    with pytest.raises(SeenEnoughError):
        stopped.run(after_step)
    assert Checkpoint(tmp_path, {"run": 1}).resume(again)
    assert again.run() == whole


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"memory_gradient": 0.5}, r"memory_gradient=0.5 is for gradients .* bptt_segments=1 lets none"),
        ({"memory_grad_clip": 1.0}, r"memory_grad_clip=1.0 is for gradients"),
        ({"bptt_segments": 2, "memory_gradient": 1.5}, r"memory_gradient=1.5 .*must lie in \[0, 1\]"),
        ({"bptt_segments": 2, "memory_gradient": (0.5, -1)}, r"memory_gradient=-1"),
        ({"bptt_segments": 2, "memory_gradient": "half"}, r"memory_gradient='half'"),
        ({"bptt_segments": 2, "memory_grad_clip": 0}, r"memory_grad_clip=0 lets nothing pass"),
        ({"bptt_segments": 0}, r"bptt_segments=0"),
        ({"bptt_segments": 2, "memory_gradient": (0.5, 0.4)}, r"memory_gradient has 2 numbers for mem_len=8"),
    ],
)
def test_settings_of_hops_are_checked(how, text):
    with pytest.raises(ParameterError, match=text):
        forecaster(TRAINERS["forecasts"][2](mem_len=8), 60, TrainingSettings(**how))


# ---------------------------------------------------------------------------------------------- checkpoint_activations


@pytest.mark.parametrize("kind", TRAINERS)
def test_checkpointed_segments_train_the_same_weights_with_dropout(kind):
    cls = LabelSettings if kind == "labels" else TrainingSettings
    _, trainer_of, model_of = TRAINERS[kind]
    found = []
    for is_checkpointed in (False, True):
        how = {"segment_len": 3, "batch_size": 1, "max_epochs": 2, "least_steps": 1, "bptt_segments": 3}
        model = drawn(model_of(mem_len=8, dropout=0.2))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            history = trainer_of(model, 60, cls(**how, checkpoint_activations=is_checkpointed)).run()
        found.append((history, list(model.parameters())))
    (plain, kept), (checked, recomputed) = found
    assert checked.train == pytest.approx(plain.train, rel=1e-6)
    np.testing.assert_allclose(checked.hop_norms, plain.hop_norms, rtol=1e-5)
    for one, other in zip(kept, recomputed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("memory", [*MEMORIES, "compressive"])
def test_checkpointed_gradients_are_equal_and_take_less_memory(memory):
    """The losses that a policy adds of its own are counted once, too."""
    changes = MEMORIES.get(memory, {"mem_len": 2, "memory": "compressive", "memory_params": {"block": 4}})
    model, pieces = label_model(**changes).train(), random_rows(4, 48).float().split(6, dim=1)
    gradients, peaks = [], []
    for is_checkpointed in (False, True):
        model.zero_grad()

        def step(how=is_checkpointed):
            loss, _, _ = unrolled(pieces, model.init_rows(4), forward_of(model), Hops(), checkpoint_activations=how)
            loss.backward()

        peaks.append(peak_bytes(step))
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    # Eight segments: an eighth, the state between them, and what backward itself needs.
    assert peaks[1] < 0.5 * peaks[0]


def test_live_bytes_are_those_that_somebody_holds():
    before = torch.zeros(500)
    with LiveBytes() as found:
        kept = [torch.zeros(1000), before[:7]]
        kept.append(kept[0].view(10, 100) + 1)
        assert found.now == 8000
        del kept[0]
        torch.ones(250)
        assert found.now == 4000
    assert found.peak == 8000

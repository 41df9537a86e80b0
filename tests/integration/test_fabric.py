"""A loop under Lightning Fabric."""

from __future__ import annotations

import importlib.metadata

import pytest

import trackside
from trackside.events import IterationEnded

torch = pytest.importorskip("torch")
fabric_package = pytest.importorskip("lightning.fabric")

pytestmark = pytest.mark.integration

ACCUMULATED, STEPS = 2, 4


def train(*callbacks):
    """Train four steps of two batches each, with an evaluated batch between them; return the losses."""
    torch.manual_seed(1)
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1, callbacks=list(callbacks))
    layer = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    losses = []
    for _ in range(STEPS):
        for _ in range(ACCUMULATED):
            loss = model(torch.rand(2, 4)).square().mean()
            fabric.backward(loss)
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        model(torch.rand(2, 4))
        model.train()
    return fabric, losses


def ours(fabric):
    (found,) = [one for one in fabric._callbacks if type(one).__module__ == "trackside.integrations.fabric"]
    return found


class TestOptIn:
    def test_off(self):
        """Merely installed, trackside changes nothing about a Fabric."""
        (entry,) = importlib.metadata.entry_points(group="lightning.fabric.callbacks_factory", name="trackside")
        assert entry.load()() == []

    def test_on(self, monkeypatch, tmp_path):
        """With one variable, and no line of code, each optimizer step is an iteration, and evaluating is none."""
        monkeypatch.setenv("TRACKSIDE", str(tmp_path / "runs"))
        monkeypatch.setenv("TRACKSIDE_RUN_ID", "by variable")
        fabric, _ = train()
        assert ours(fabric)._iteration is None
        ours(fabric).close()
        ended = [event for event in trackside.replay(tmp_path / "runs") if type(event) is IterationEnded]
        assert [(one.kind, one.failed) for one in ended] == [("training", False)] * STEPS
        assert [one.step - ended[0].step for one in ended] == [0, 1, 2, 3]
        assert {(one.source.rank, one.source.world_size, one.source.run_id) for one in ended} == {(0, 1, "by variable")}


def test_same_losses(tmp_path):
    """The losses are those without trackside, bit for bit."""
    from trackside.integrations.fabric import TracksideCallback

    _, plain = train()
    fabric, watched = train(TracksideCallback(tmp_path / "runs"))
    ours(fabric).close()
    assert watched == plain

"""One Logger's integration of Lightning under trackside's names, with real trainers."""

from __future__ import annotations

import collections
import importlib.util
from pathlib import Path

import pytest

lightning = pytest.importorskip("lightning.pytorch")
torch = pytest.importorskip("torch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402  after it is known to be there
from lightning.pytorch.demos.boring_classes import BoringModel  # noqa: E402

from trackside.bus import default_bus  # noqa: E402
from trackside.compat.one_logger.recorder.default_recorder import ExportCustomizationMode  # noqa: E402
from trackside.compat.one_logger.training_telemetry.integration.pytorch_lightning import (  # noqa: E402
    OneLoggerPTLTrainer,
    TimeEventCallback,
    hook_trainer_cls,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.hang_guard(600),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


def fixtures():
    """Return the module with the fixtures of the other tests of One Logger's names: tests are no package."""
    path = Path(__file__).parents[1] / "compat" / "conftest.py"
    spec = importlib.util.spec_from_file_location("one_logger_fixtures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


one_logger, recording = fixtures().one_logger, fixtures().recording


EPOCHS, BATCHES, VALIDATED, EVERY = 2, 4, 3, 2


@pytest.fixture
def provider(one_logger, recording):
    """Give the provider, which exports every span."""
    return one_logger.start(recording, customization=(ExportCustomizationMode.EXPORT_ALL_SPANS, None))


def options(tmp_path, **more):
    """Return the arguments of the trainer."""
    return {
        "max_epochs": EPOCHS,
        "limit_train_batches": BATCHES,
        "limit_val_batches": VALIDATED,
        "logger": False,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [ModelCheckpoint(every_n_train_steps=EVERY, save_top_k=-1, dirpath=tmp_path / "saved")],
        **more,
    }


@pytest.fixture(params=["subclass", "hook"])
def make(request, provider, tmp_path):
    """Give a function that makes a trainer, in either way."""

    def made(**more):
        given = options(tmp_path, **more)
        if request.param == "subclass":
            return OneLoggerPTLTrainer(given, provider)

        class Own(lightning.Trainer):
            """A class of the test's own, for hooking changes it."""

        hooked, callback = hook_trainer_cls(Own, provider)
        trainer = hooked(**given)
        assert trainer.nv_one_logger_callback is callback
        return trainer

    return made


def spans(recording):
    """Return how often each span was exported to its end."""
    return collections.Counter(name for call, name in recording.calls if call == "stop")


class TestTrainer:
    def test_spans(self, make, recording):
        """Loops, iterations and saves are recorded as often as they ran."""
        trainer = make()
        trainer.fit(BoringModel())
        trainer.nv_one_logger_callback.on_app_end()
        saves = EPOCHS * BATCHES // EVERY
        # Lightning validates two batches before the training, too.
        assert spans(recording) == {
            "application": 1,
            "training_loop": 1,
            "training_single_iteration": EPOCHS * BATCHES,
            "validation_loop": EPOCHS + 1,
            "validation_single_iteration": EPOCHS * VALIDATED + 2,
            "checkpoint_save_sync": saves,
        }
        assert (
            len(recording.of("event on application", "save_checkpoint_success"))
            + len(recording.of("event on checkpoint_save_sync", "save_checkpoint_success"))
            == saves
        )

    def test_first(self, make):
        """The callback comes before those that were given."""
        trainer = make()
        assert isinstance(trainer.callbacks[0], TimeEventCallback)

    def test_failing_save(self, make, recording, monkeypatch):
        """A save that fails is closed without a success, and its error is the caller's."""
        trainer = make()
        trainer.fit(BoringModel())
        assert default_bus.flush(60)
        before = len(recording.of("event on checkpoint_save_sync", "save_checkpoint_success"))

        def fail(*_, **__):
            raise OSError("the disk is full")

        monkeypatch.setattr(trainer.strategy, "save_checkpoint", fail)
        with pytest.raises(OSError, match="the disk is full"):
            trainer.save_checkpoint("model.ckpt")
        trainer.nv_one_logger_callback.on_app_end()
        assert len(recording.of("event on checkpoint_save_sync", "save_checkpoint_success")) == before
        assert spans(recording)["checkpoint_save_sync"] == EPOCHS * BATCHES // EVERY + 1


def test_skipped_end(provider, recording):
    """A validation iteration whose end Lightning skipped is closed by the next one, and by the end of the loop."""
    callback = TimeEventCallback(provider)
    callback.on_validation_start(None, None)
    for index in range(3):
        callback.on_validation_batch_start(None, None, None, index)
    callback.on_validation_end(None, None)
    callback.on_app_end()
    assert spans(recording)["validation_single_iteration"] == 3


def test_given_list(provider, tmp_path):
    """A hooked trainer wants a list of callbacks, as the peer's does."""

    class Own(lightning.Trainer):
        """A class of the test's own, for hooking changes it."""

    hooked, _ = hook_trainer_cls(Own, provider)
    with pytest.raises(ValueError, match="give a list"):
        hooked(**options(tmp_path, callbacks=ModelCheckpoint()))


def test_own_start(provider, recording):
    """Without `call_on_app_start` the application is not started."""
    TimeEventCallback(provider, call_on_app_start=False)
    assert default_bus.flush(60)
    assert ("start", "application") not in recording.calls

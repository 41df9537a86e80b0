"""
The instruments, with which a training job emits events.

The spans of the job are context managers and decorators; `trackside.instruments.callbacks` has the same moments as
callbacks. No module here imports handlers, the job or integrations.
"""

from trackside.events._ambient import next_id
from trackside.instruments._checkpoint import (
    CheckpointSave,
    checkpoint_failed,
    checkpoint_load,
    checkpoint_save,
    checkpoint_save_finalization,
    checkpoint_succeeded,
)
from trackside.instruments._children import begin_outside_of_spans, environ_for_child, parent_from
from trackside.instruments._defaults import TrainingDefaults, set_training_defaults, training_defaults
from trackside.instruments._iteration import (
    Iteration,
    data_loading,
    model_backward,
    model_forward,
    optimizer_update,
    testing_iteration,
    training_iteration,
    validation_iteration,
    zero_grad,
)
from trackside.instruments._logged_metrics import config, metrics
from trackside.instruments._phases import (
    Application,
    TrainingLoop,
    application,
    dataloader_init,
    distributed_init,
    model_init,
    optimizer_init,
    testing_loop,
    training_loop,
    validation_loop,
)
from trackside.instruments._raised import is_good_end, record_exception
from trackside.instruments._section import Section
from trackside.instruments._span import Span, SpanOrderError, is_evaluating, open_spans, span
from trackside.instruments._wrapping import (
    NamedCallable,
    restore_callables,
    stop_timing_collectives,
    time_collectives,
    wrap_callables,
)
from trackside.instruments.section_windows import close_section_window, configure_sections, section, waiting
from trackside.instruments.torch import annotate

begin_outside_of_spans()

__all__ = [
    "Application",
    "CheckpointSave",
    "Iteration",
    "NamedCallable",
    "Section",
    "Span",
    "SpanOrderError",
    "TrainingDefaults",
    "TrainingLoop",
    "annotate",
    "application",
    "checkpoint_failed",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_save_finalization",
    "checkpoint_succeeded",
    "close_section_window",
    "config",
    "configure_sections",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "environ_for_child",
    "is_evaluating",
    "is_good_end",
    "metrics",
    "model_backward",
    "model_forward",
    "model_init",
    "next_id",
    "open_spans",
    "optimizer_init",
    "optimizer_update",
    "parent_from",
    "record_exception",
    "restore_callables",
    "section",
    "set_training_defaults",
    "span",
    "stop_timing_collectives",
    "testing_iteration",
    "testing_loop",
    "time_collectives",
    "training_defaults",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "waiting",
    "wrap_callables",
    "zero_grad",
]

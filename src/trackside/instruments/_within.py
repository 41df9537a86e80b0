"""The parts of a training iteration, several times each: spans of one record, written when they end."""

from __future__ import annotations

from typing import Any

from trackside._implementation import native
from trackside.events import ProfileSpanEnded, span_names
from trackside.instruments._span import Span, make_span


def data_loading(**attributes: Any) -> Span:
    """Return the span of waiting for a batch; use it with ``with``, or as a decorator."""
    return make_span(span_names.DATA_LOADING, ProfileSpanEnded, attributes)


def model_forward(**attributes: Any) -> Span:
    """Return the span of a forward pass; use it with ``with``, or as a decorator."""
    return make_span(span_names.MODEL_FORWARD, ProfileSpanEnded, attributes)


def zero_grad(**attributes: Any) -> Span:
    """Return the span of clearing the gradients; use it with ``with``, or as a decorator."""
    return make_span(span_names.ZERO_GRAD, ProfileSpanEnded, attributes)


def model_backward(**attributes: Any) -> Span:
    """Return the span of a backward pass; use it with ``with``, or as a decorator."""
    return make_span(span_names.MODEL_BACKWARD, ProfileSpanEnded, attributes)


def optimizer_update(**attributes: Any) -> Span:
    """Return the span of an optimizer step; use it with ``with``, or as a decorator."""
    return make_span(span_names.OPTIMIZER_UPDATE, ProfileSpanEnded, attributes)


if native is not None:
    data_loading, model_forward, zero_grad, model_backward, optimizer_update = (
        native.compile_part(_function, _name, ProfileSpanEnded)
        for _function, _name in (
            (data_loading, span_names.DATA_LOADING),
            (model_forward, span_names.MODEL_FORWARD),
            (zero_grad, span_names.ZERO_GRAD),
            (model_backward, span_names.MODEL_BACKWARD),
            (optimizer_update, span_names.OPTIMIZER_UPDATE),
        )
    )

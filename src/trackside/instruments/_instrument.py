"""A plain PyTorch loop, watched through its model, its optimizer and its data loader, with no further code in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trackside.events import ConfigError, clock, process_source, span_names
from trackside.instruments import torch as pytorch
from trackside.instruments._batches import samples_in
from trackside.instruments._iteration import Iteration, training_iteration
from trackside.instruments._parts import Parts
from trackside.instruments._within import data_loading
from trackside.instruments.sections import section

if TYPE_CHECKING:
    from typing_extensions import Self

_WATCHED = "_trackside_watched"
"""Marks the class that stands in for a data loader's own."""
_METHODS = {
    "model": ("register_forward_pre_hook", "register_forward_hook"),
    "optimizer": ("register_step_pre_hook", "register_step_post_hook"),
    "dataloader": ("__iter__",),
}


def instrument(model: Any, optimizer: Any, dataloader: Any = None, *, gpu: bool = False) -> Instrumented:
    """
    Make spans and sections of a plain training loop, which stays as it is.

    ::

        instrument(model, optimizer, dataloader)
        for inputs, targets in dataloader:
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    A training iteration lasts from when its first batch is asked for to the end of the optimizer's step, however many
    batches are accumulated in it; without a data loader it begins with the model's forward pass. Its samples are
    those of this rank's batches times the world size. Nothing is recorded while the model is in evaluation mode.

    Args:
        model: A ``torch.nn.Module``, wrapped for distributed training or not. A compiled one is watched from outside:
            pass what ``torch.compile`` returned.
        optimizer: A ``torch.optim.Optimizer``.
        dataloader: What the loop iterates over, if it has a class of its own: a ``DataLoader``, say.
        gpu: Whether sections take the GPU's time too.

    Returns:
        What undoes it: `Instrumented.close`, or leaving its ``with`` block.

    Raises:
        ConfigError: if one of them is not what it should be, or is instrumented already.
    """
    for name, given in (("model", model), ("optimizer", optimizer), ("dataloader", dataloader)):
        if given is None and name == "dataloader":
            continue
        missing = [method for method in _METHODS[name] if not hasattr(type(given), method)]
        if missing:
            raise ConfigError(name, given, f"give one that has {' and '.join(missing)}")
    if getattr(type(dataloader), _WATCHED, False):
        raise ConfigError("dataloader", dataloader, "it is instrumented already; close that first")
    return Instrumented(model, optimizer, dataloader, gpu=gpu)


class Instrumented:
    """A training loop that is watched; made by `instrument`. For one thread, as the loop itself."""

    def __init__(self, model: Any, optimizer: Any, dataloader: Any, *, gpu: bool) -> None:
        self._model = model
        self._dataloader = dataloader
        self._dataloader_class = type(dataloader)
        self._parts = Parts()
        self._parts.gpu = gpu
        self._iteration: Iteration | None = None
        self._samples: int | None = None
        not_compiled = pytorch.not_compiled()
        self._queue_callback = pytorch.backward_callback()
        if dataloader is not None:
            _watch(dataloader, self.batches)
        self._hooks = [
            model.register_forward_pre_hook(not_compiled(self._before_forward)),
            model.register_forward_hook(not_compiled(self._after_forward), always_call=True),
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
        ]

    # --- data --------------------------------------------------------------------------------------------------

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield what *iterator* does, and record how long each took to come."""
        while True:
            begun_ns = clock.now_ns()
            try:
                with section(span_names.DATA_LOADING):
                    batch = next(iterator)
            except StopIteration:
                return
            self._take(batch, begun_ns)
            yield batch

    def _take(self, batch: Any, begun_ns: int) -> None:
        if not self._model.training:
            return
        # Only now it is known that there is an iteration: the last time, a loader is asked for what it has not.
        self._begin(begun_ns)
        data_loading().open(at_ns=begun_ns).close()
        samples = samples_in(batch)
        if samples is not None:
            self._samples = (self._samples or 0) + samples * max(1, process_source().world_size)

    def _begin(self, at_ns: int | None = None) -> None:
        if self._iteration is None:
            self._iteration = training_iteration()
            self._iteration.open(at_ns=at_ns)

    # --- forward and backward ----------------------------------------------------------------------------------

    def _before_forward(self, _module: Any, _inputs: Any) -> None:
        if self._model.training:
            self._begin()
            self._parts.begin(span_names.MODEL_FORWARD)

    def _after_forward(self, _module: Any, _inputs: Any, outputs: Any) -> None:
        self._parts.end(span_names.MODEL_FORWARD)
        if self._iteration is not None and self._model.training:
            for tensor in _differentiable(outputs):
                tensor.register_hook(self._on_gradient)

    def _on_gradient(self, _gradient: Any) -> None:
        """Take the first gradient that arrives at the model's outputs for the beginning of its backward pass."""
        if self._iteration is not None and not self._parts.has_open(span_names.MODEL_BACKWARD):
            self._parts.begin(span_names.MODEL_BACKWARD)
            self._queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._parts.end(span_names.MODEL_BACKWARD)

    # --- update ------------------------------------------------------------------------------------------------

    def _before_update(self, _optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._iteration is not None:
            self._parts.begin(span_names.OPTIMIZER_UPDATE)

    def _after_update(self, _optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        self._parts.end(span_names.OPTIMIZER_UPDATE)
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        iteration, self._iteration = self._iteration, None
        samples, self._samples = self._samples, None
        if iteration is not None:
            iteration.set(samples=samples)
            iteration.__exit__(None if error is None else type(error), error, None)

    def close(self, *, error: BaseException | None = None) -> None:
        """
        Undo it: the model, the optimizer and the data loader are as they were.

        Args:
            error: The exception that ended the loop; an iteration that is open then has failed.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if getattr(type(self._dataloader), _WATCHED, False):
            object.__setattr__(self._dataloader, "__class__", self._dataloader_class)
        if error is not None:
            self._parts.fail(error)
        self._parts.end_all()
        self._end(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error=error)


def _watch(dataloader: Any, batches: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Have every iteration over *dataloader* go through *batches*; ``iter()`` looks at the class, so it gets one."""
    before = type(dataloader)

    def iterate(self: Any) -> Iterator[Any]:
        return batches(before.__iter__(self))

    try:
        watched = type(
            before.__name__, (before,), {"__iter__": iterate, "__module__": before.__module__, _WATCHED: True}
        )
        object.__setattr__(dataloader, "__class__", watched)
    except TypeError as error:
        raise ConfigError("dataloader", dataloader, f"give one of a class that can be derived from: {error}") from None


def _differentiable(outputs: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the tensors in *outputs* that gradients will flow back to."""
    if getattr(outputs, "requires_grad", False):
        yield outputs
    elif depth and isinstance(outputs, dict):
        for part in outputs.values():
            yield from _differentiable(part, depth - 1)
    elif depth and isinstance(outputs, (list, tuple)):
        for part in outputs:
            yield from _differentiable(part, depth - 1)

"""A plain PyTorch loop, watched through its model, its optimizer and its data loader, with no further code in it."""

from __future__ import annotations

import contextvars
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from trackside.events import ConfigError, ambient, clock, process_source, span_names
from trackside.events._settings import suggests_settings
from trackside.instruments import data_loading, section, training_iteration
from trackside.instruments import torch as pytorch
from trackside.instruments._iteration import Iteration
from trackside.instruments._moments import watched_loops
from trackside.instruments._span import is_innermost, opened, withdraw
from trackside.integrations._parts import Parts, Patches, WatchedEvaluation, samples_in, watch_forward

if TYPE_CHECKING:
    from typing_extensions import Self

_WATCHED: Final = "_trackside_watched"
"""Marks the class that replaces a data loader's own."""
_UNSCALED: Final = "_trackside_unscaled"
"""The attribute, of a loss that a gradient scaler has multiplied, with the loss before that."""
_METHODS: Final = {
    "model": ("register_forward_pre_hook", "register_forward_hook"),
    "optimizer": ("register_step_pre_hook", "register_step_post_hook"),
    "dataloader": ("__iter__",),
}

_instrumented: Final[list[Instrumented]] = []
"""The loops that are watched now."""
_patches: Final = Patches()
"""The patches of torch, while any loop is watched."""


@suggests_settings()
def instrument(model: Any, optimizer: Any, dataloader: Any = None, *, gpu: bool | None = None) -> Instrumented:
    """
    Make spans and sections of a plain training loop, without changes to its code.

    ::

        instrument(model, optimizer, dataloader)
        for inputs, targets in dataloader:
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    A training iteration lasts from the request for its first batch to the end of the optimizer's step, however many
    batches are accumulated in it. Without a data loader it begins with the model's forward pass. Its samples are
    those of this rank's batches times the world size. Its loss is the tensor on which ``backward()`` was called, before
    a gradient scaler changed it; if there are several, their mean.

    Forward passes in evaluation mode are the iterations of a validation loop, unless the script has its own spans for
    them. The validation loop ends when the next batch is trained on.

    Steps are counted from 0. A script that goes on from a checkpoint has ``training_loop(train_iterations_start=…)``
    around the loop; else its steps look like earlier ones that are done again.

    If the training loop has `training_iteration` blocks of its own, they are the iterations: each gets the parts inside
    of it, and the samples and the loss if the script sets none.

    Args:
        model: A ``torch.nn.Module``, wrapped for distributed training or not. A compiled one is watched from outside:
            pass what ``torch.compile`` returned.
        optimizer: A ``torch.optim.Optimizer``.
        dataloader: The object over which the loop iterates: a ``DataLoader``, or any object whose class is written in
            Python. For a generator, give an object whose ``__iter__`` returns it.
        gpu: Whether sections time the GPU too; by default, if there is a CUDA device.

    Returns:
        An object that undoes this by `Instrumented.close`, or at the end of its ``with`` block.

    Raises:
        ConfigError: if an argument is invalid, or the data loader is instrumented already.
    """
    for name, given in (("model", model), ("optimizer", optimizer), ("dataloader", dataloader)):
        if given is None and name == "dataloader":
            continue
        missing = [method for method in _METHODS[name] if not hasattr(type(given), method)]
        if missing:
            raise ConfigError(name, given, f"give one that has {' and '.join(missing)}")
    if getattr(type(dataloader), _WATCHED, False):
        raise ConfigError("dataloader", dataloader, "it is instrumented already; close that first")
    return Instrumented(model, optimizer, dataloader, gpu=pytorch.has_cuda() if gpu is None else gpu)


class Instrumented:
    """A training loop that is watched; made by `instrument`. Only one thread may use it, like the loop itself."""

    def __init__(self, model: Any, optimizer: Any, dataloader: Any, *, gpu: bool) -> None:
        # A weak reference: a notebook's cell that is run again makes another model and does not close this.
        self._model = weakref.ref(model, self._forget)
        self._dataloader = dataloader
        self._dataloader_class = type(dataloader)
        self._parts = Parts()
        self._parts.gpu = gpu
        self._iteration: Iteration | None = None
        self._thread = 0
        """The thread that the open iteration runs in."""
        self._samples: int | None = None
        self._losses: list[Any] = []
        self._has_forward = False
        """Whether the open iteration had a forward pass."""
        self._has_own: bool | None = None
        """Whether the iterations are the script's own; None before its first forward pass."""
        self._waits: list[tuple[contextvars.Context, int, int]] = []
        """The context, the start and the end of the wait for each batch before that."""
        self._filled: tuple[int | None, Any] = None, None
        """The samples and the loss that were set here on the open iteration, if it is the script's own."""
        self._evaluation = WatchedEvaluation()
        if dataloader is not None:
            _watch(dataloader, self.batches)
        self._hooks = [
            *watch_forward(model, self._before_forward, self._after_forward),
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
        ]
        if not _instrumented:
            _patch_torch()
        _instrumented.append(self)
        watched_loops.append(self._end_open)

    # --- data --------------------------------------------------------------------------------------------------

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of *iterator*, and record the wait for each."""
        while True:
            begun_ns = clock.now_ns()
            try:
                with section(span_names.DATA_LOADING):
                    batch = next(iterator)
            except StopIteration:
                return
            except BaseException as error:
                if self._is_training():
                    data_loading().open(at_ns=begun_ns).close(error=error)
                raise
            self._take_batch(batch, begun_ns)
            yield batch

    def _is_training(self) -> bool:
        model = self._model()
        return model is not None and model.training

    def _take_batch(self, batch: Any, begun_ns: int) -> None:
        if not self._is_training():
            return
        # Only a batch shows that there is an iteration: the last request to a loader yields none.
        if self._has_own is None and _own_iteration() is None:
            self._waits.append((contextvars.copy_context(), begun_ns, clock.now_ns()))
        else:
            self._begin(begun_ns)
            _record_wait(begun_ns)
        samples = samples_in(batch)
        if samples is not None:
            self._samples = (self._samples or 0) + samples * max(1, process_source().world_size)

    def _begin(self, at_ns: int | None = None) -> None:
        waits, self._waits = self._waits, []
        if waits:
            at_ns = waits[0][1]
        if self._evaluation.is_open:
            self._evaluation.end(clock.now_ns() if at_ns is None else at_ns)
        if self._has_own is not False:
            self._use(_own_iteration())
        if self._iteration is None and not self._has_own:
            self._thread = threading.get_ident()
            self._parts.is_shared = pytorch.is_distributed()
            self._iteration, self._has_forward = training_iteration(), False
            self._iteration.open(at_ns=at_ns)
            if self._iteration.id:  # while no handler wants iterations, those of the script are not seen
                self._has_own = False
        for place, begun_ns, ended_ns in waits:
            if self._has_own:
                place.run(_record_wait, begun_ns, ended_ns)
            else:
                _record_wait(begun_ns, ended_ns)

    def _use(self, own: Iteration | None) -> None:
        """Use the script's own iteration as the open one, if there is one or was one before."""
        if own is not None:
            self._has_own = True
        if self._has_own and own is not self._iteration:
            if self._iteration is not None:  # it ended without an update
                self._samples, self._losses = None, []
            self._iteration, self._filled = own, (None, None)
            self._thread = threading.get_ident()
            self._parts.is_shared = pytorch.is_distributed()

    # --- forward and backward ----------------------------------------------------------------------------------

    def _before_forward(self, module: Any, inputs: Any) -> None:
        if not module.training:
            self._evaluation.begin_batch(samples_in(inputs))
        elif module is self._model():  # the module inside, called by itself, exchanges nothing with other ranks
            self._begin()
            self._has_forward = True
            self._parts.begin(span_names.MODEL_FORWARD)

    def _after_forward(self, module: Any, outputs: Any, error: BaseException | None) -> None:
        self._parts.end(span_names.MODEL_FORWARD, error)
        if self._evaluation.is_open:
            self._evaluation.end_forward(error)
        elif self._iteration is not None and module.training and len(_instrumented) > 1:
            for tensor in _differentiable(outputs):
                tensor.register_hook(self._on_gradient)

    def _on_gradient(self, _gradient: Any) -> None:
        """Begin the backward pass with the first gradient of the outputs, which shows that it is this model's."""
        if self._iteration is not None:
            self._parts.begin(span_names.MODEL_BACKWARD)

    def begin_backward(self, loss: Any) -> None:
        """Open the backward pass from *loss*."""
        if self._iteration is None or threading.get_ident() != self._thread:
            return
        if sum(one._iteration is not None for one in _instrumented) == 1:  # noqa: SLF001  our own class
            self._parts.begin_backward(loss)
            if getattr(loss, "ndim", None) == 0:
                self._losses.append(getattr(loss, _UNSCALED, loss).detach())

    def end_backward(self, error: BaseException | None = None) -> None:
        """Close the backward pass, the waits of distributed training in it included, or by an *error*."""
        if threading.get_ident() == self._thread:
            self._parts.end(span_names.MODEL_BACKWARD, error)
            if self._has_own and self._iteration is not None:
                self._fill(self._iteration)

    def _fill(self, own: Iteration) -> None:
        """Set the samples and the loss known by now on the script's own iteration, unless the script has set them."""
        samples, loss = self._filled
        self._filled = self._samples, _mean(self._losses)
        if own.samples is samples:
            own.samples = self._filled[0]
        if own.loss is loss:
            own.loss = self._filled[1]

    # --- update ------------------------------------------------------------------------------------------------

    def _before_update(self, _optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._iteration is not None:
            self._parts.begin(span_names.OPTIMIZER_UPDATE)

    def _after_update(self, _optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        self._parts.end(span_names.OPTIMIZER_UPDATE)
        ended = self._iteration
        begins_own = not (self._has_own or ended is None or is_innermost(ended)) and _own_iteration() is not None
        self._end()
        if begins_own:
            self._has_own = True
        elif ended is None:
            self._has_own = None  # after a loop with own iterations, one without may follow

    def _end(self, error: BaseException | None = None) -> None:
        iteration, self._iteration = self._iteration, None
        samples, self._samples = self._samples, None
        losses, self._losses = self._losses, []
        if iteration is not None and not self._has_own:
            iteration.set(samples=samples, loss=_mean(losses))
            iteration.__exit__(None if error is None else type(error), error, None)

    def _end_open(self, error: BaseException | None) -> None:
        """End the open spans; without an error, an iteration without an update is not recorded."""
        if error is not None:
            self._parts.end_all(error)
            self._end(error)
        elif self._iteration is not None and not self._has_own:
            withdraw(self._iteration)
            self._iteration, self._samples, self._losses = None, None, []
        self._evaluation.end(error=error)
        if self not in _instrumented and self._end_open in watched_loops:
            watched_loops.remove(self._end_open)

    def _forget(self, _freed: Any = None) -> None:
        """Watch no more, because this is closed or the model does not exist any more."""
        if self in _instrumented:
            _instrumented.remove(self)
            if not _instrumented:
                _patches.remove()

    def close(self, *, error: BaseException | None = None) -> None:
        """
        Restore the model, the optimizer and the data loader as they were.

        Args:
            error: The exception that ended the loop; an iteration that is open then has failed. Without one, an
                iteration without an update is not recorded.
        """
        self._forget()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if getattr(type(self._dataloader), _WATCHED, False):
            object.__setattr__(self._dataloader, "__class__", self._dataloader_class)
        self._parts.end_all(error)
        self._end_open(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error=error)


def _own_iteration() -> Iteration | None:
    """Return the training iteration around that the script itself has opened, if there is one."""
    ours = {id(one._iteration) for one in _instrumented if not one._has_own}  # noqa: SLF001  our own class
    spans = opened()
    around = spans.get(ambient.get()[0])
    while around is not None and (around.name != span_names.TRAINING_ITERATION or id(around) in ours):
        around = spans.get(around.parent_id)
    return around if isinstance(around, Iteration) else None


def _record_wait(begun_ns: int, ended_ns: int | None = None) -> None:
    data_loading().open(at_ns=begun_ns).close(at_ns=ended_ns)


def _mean(losses: list[Any]) -> Any:
    return losses[0] if len(losses) == 1 else sum(losses) / len(losses) if losses else None


def _patch_torch() -> None:
    """Have every backward pass call the watched loops; all of them go through ``torch.autograd.backward``."""
    torch = pytorch.torch_module("instrument()")
    _patches.replace(torch.autograd, "backward", _watching_backward)
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is not None:
        _patches.replace(scaler, "scale", _remembering_unscaled)


def _watching_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def watching(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if pytorch.is_compiling():
            return backward(tensors, *args, **kwargs)
        watched = list(_instrumented)
        for one in watched:
            one.begin_backward(tensors)
        error = None
        try:
            return backward(tensors, *args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for one in watched:
                one.end_backward(error)

    return watching


def _remembering_unscaled(scale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scale)
    def remembering(scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if scaled is not outputs and getattr(outputs, "ndim", None) == 0:
            setattr(scaled, _UNSCALED, outputs)
        return scaled

    return remembering


def _watch(dataloader: Any, batches: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Have iterations over *dataloader* go through *batches*, by a new class, because ``iter()`` uses the class."""
    before = type(dataloader)

    def iterate(self: Any) -> Iterator[Any]:
        return batches(before.__iter__(self))

    try:
        watched = type(
            before.__name__, (before,), {"__iter__": iterate, "__module__": before.__module__, _WATCHED: True}
        )
        object.__setattr__(dataloader, "__class__", watched)
    except TypeError:  # a generator, a list, zip(): their classes are Python's own
        remedy = "give an object of a class of your own whose __iter__ returns it, and loop over that object"
        raise ConfigError("dataloader", dataloader, f"a {before.__name__} cannot be watched; {remedy}") from None


def _differentiable(outputs: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the tensors in *outputs* to which gradients will flow back."""
    if getattr(outputs, "requires_grad", False):
        yield outputs
    elif depth and isinstance(outputs, dict):
        for part in outputs.values():
            yield from _differentiable(part, depth - 1)
    elif depth and isinstance(outputs, (list, tuple)):
        for part in outputs:
            yield from _differentiable(part, depth - 1)

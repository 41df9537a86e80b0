from __future__ import annotations

import pytest

from trackside.events import SectionWindow
from trackside.instruments import section_windows as module
from trackside.instruments import stop_timing_collectives, time_collectives

distributed = pytest.importorskip("torch").distributed
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def restored():
    """Restore torch and the sections after the test."""
    yield
    stop_timing_collectives()
    module._sections.close()


@pytest.fixture
def group(tmp_path):
    """Make a process group of one rank."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class TestTimeCollectives:
    def test_calls(self, captured, group):
        """Calls into torch are timed as waiting, under the function's name."""
        time_collectives()
        distributed.barrier()
        distributed.barrier()
        module.step_ended(0)
        module.close_section_window()
        (event,) = captured.of(SectionWindow)
        index = event.names.index("torch.distributed.barrier")
        assert (event.counts[index], event.waits) == (2, event.names)

    def test_opt_in(self, captured, group):
        """Torch is not changed unless the caller asks for it."""
        before = distributed.barrier
        time_collectives(["barrier"])
        assert distributed.barrier is not before
        stop_timing_collectives()
        assert distributed.barrier is before

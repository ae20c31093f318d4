"""The clock on a simulated device: whatever launches cost the host, only the device's time is counted."""

import contextlib
from collections import deque
from types import SimpleNamespace

import pytest

from kernels.bench import clock
from kernels.bench.clock import CYCLES, FEWEST, Clock, TooSlow

PENDING = 1000
"""Launches that the simulated queue holds before the host must wait, as CUDA's does."""


class Machine:
    """A host and a device with a queue, in seconds of their own; stands in for torch.cuda and time."""

    def __init__(self):
        self.now, self.free, self.pending, self.captured = 0.0, 0.0, deque(), None
        self.capturable, self.calls = True, 0
        machine = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = max(machine.now, machine.free)

            def query(self):
                return machine.now >= self.at

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        class CUDAGraph:
            work = 0.0

            def replay(self):
                machine.launch(1e-5, self.work)

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def launch(self, host, device):
        """One launch that costs the host and the device so much."""
        if self.captured is not None:
            self.captured.work += device
            return
        self.now += host
        while self.pending and self.pending[0] <= self.now:
            self.pending.popleft()
        if len(self.pending) >= PENDING:
            self.now = self.pending.popleft()
        self.free = max(self.now, self.free) + device
        self.pending.append(self.free)

    def call(self, host, device, launches=1):
        """A call of so many launches."""

        def called():
            self.calls += 1
            for _ in range(launches):
                self.launch(host / launches, device / launches)

        return called

    @contextlib.contextmanager
    def graph(self, graph, stream):
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.captured = graph
        yield
        self.captured = None

    def synchronize(self):
        self.now = max(self.now, self.free)

    def perf_counter(self):
        return self.now

    def _sleep(self, cycles):
        self.launch(1e-6, cycles / CYCLES)

    def Stream(self):
        return None

    def current_device(self):
        return 0

    def get_device_properties(self, device):
        return SimpleNamespace(L2_cache_size=1)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(clock, "torch", SimpleNamespace(cuda=made))
    monkeypatch.setattr(clock, "time", made)
    return made


@pytest.mark.parametrize("host", [1e-6, 1e-4, 5e-4, 5e-3])
def test_a_call_is_timed_by_events_behind_a_wait(machine, host):
    """Python may take ten times as long to launch as the device to compute."""
    timing = Clock().time([machine.call(host, 4e-4)] * 3, 50, 10.0)
    assert timing.method == "events"
    assert len(timing.samples) == 50
    assert timing.ms == pytest.approx(0.4, rel=1e-3)
    assert timing.spread < 0.1


def test_a_short_call_is_replayed_from_a_graph(machine):
    """Below 0.25 ms the gaps between launches count; a graph has none."""
    timing = Clock().time([machine.call(1e-4, 2e-5)] * 4, 50, 10.0)
    assert timing.method == "graph"
    assert timing.ms == pytest.approx(0.02, rel=1e-3)
    assert timing.as_called_ms == pytest.approx(0.1, rel=1e-2)


def test_more_launches_than_the_queue_holds_are_replayed_from_a_graph(machine):
    """A loop over time in Python: 10,000 launches a call, each slower for the host than for the device."""
    timing = Clock().time([machine.call(0.07, 0.02, launches=10_000)] * 2, 50, 10.0)
    assert timing.method == "graph"
    assert timing.ms == pytest.approx(20, rel=1e-3)
    assert timing.as_called_ms == pytest.approx(70, rel=1e-2)
    assert machine.now < 30


def test_a_call_that_no_graph_can_hold_is_timed_as_called_and_says_so(machine):
    """Its number holds the host's launches; a reader must know."""
    machine.capturable = False
    timing = Clock().time([machine.call(0.07, 0.02, launches=10_000)] * 2, 20, 10.0)
    assert timing.method == "as called"
    assert timing.ms == pytest.approx(70, rel=1e-2)
    assert timing.note == (
        "no CUDA graph can be made of it (RuntimeError: operation not permitted when stream is capturing)"
    )
    short = Clock().time([machine.call(1e-4, 2e-5)], 20, 10.0)
    assert short.method == "events"
    assert short.ms == pytest.approx(0.02, rel=1e-2)


def test_a_slow_call_gets_as_few_repeats_as_fit_and_none_below_three(machine):
    """A budget holds for every number; a median needs three."""
    call = machine.call(2.0, 2.9, launches=10_000)
    timing = Clock().time([call], 50, 10.0)
    assert timing.method == "as called"
    assert len(timing.samples) == FEWEST
    assert timing.ms == pytest.approx(2900, rel=1e-3)
    with pytest.raises(TooSlow, match=r"3 calls take more than 8 s, one 2.9 s"):
        Clock().time([call], 50, 8.0)


def test_inputs_rotate(machine):
    """Every call in turn, or a set of inputs would stay in the cache."""
    order = []

    def call(k):
        def called():
            order.append(k)
            machine.launch(1e-5, 4e-4)

        return called

    Clock().time([call(k) for k in range(3)], 6, 10.0)
    assert order[1:8] == [0, 1, 2, 0, 1, 2, 0]

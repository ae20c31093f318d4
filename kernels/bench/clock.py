"""Times calls on a CUDA device so that only the device's time counts, and its memory. Knows nothing of subjects.

Calls are queued behind a kernel that only waits, with an event between any two: when the device comes to them the host
is done, and its launches cost nothing. Calls below `SHORT` are captured in a CUDA graph and replayed, because there the
gaps between launches count; so are calls of so many launches that the queue cannot hold them. Calls beyond `LONG`
are timed as they are called.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SHORT = 0.25
"""ms below which a call is timed in a graph: some gaps of 1 to 2 us between launches would be 1 % of it."""
LONG = 0.5
"""s from which on a call is timed as it is called: what launches cost is small beside it, or hopeless."""
FEWEST = 3
"""Calls without which there is no median."""
COPIED = 2**31
"""Bytes that the bandwidth's copy reads, and writes."""
QUEUED = 25
"""Calls behind one wait: the device's queue holds about 1,000 launches."""
LONGEST_WAIT = 0.5
CYCLES = 2e9
"""Device cycles a second, roughly: how long the waiting kernel is told to wait."""
GRAPH_MS = 2.0
"""Work that a graph holds at least, so that the launch of the graph itself is small beside it."""
MOST_CAPTURED = 1000


class TooSlow(RuntimeError):
    """A call that does not fit the time budget."""


@dataclass(frozen=True)
class Timing:
    """Device time of a call in ms, one sample a call ("graph": one a replay, its calls averaged).

    `method` is "events", "graph" or "as called"; `as_called_ms` the median with the host's launches where they count.
    """

    samples: tuple[float, ...]
    method: str = "events"
    as_called_ms: float | None = None
    note: str | None = None

    @property
    def ms(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range in % of the median."""
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return 100 * (high - low) / self.ms


class Clock:
    """A CUDA device's clock; a context in which all work goes to one stream of its own, which graphs need."""

    device = "cuda"

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.properties = torch.cuda.get_device_properties(torch.cuda.current_device())

    def __enter__(self):
        torch.cuda.synchronize()
        self._context = torch.cuda.stream(self.stream)
        self._context.__enter__()
        return self

    def __exit__(self, *error):
        self._context.__exit__(*error)

    @property
    def cache_bytes(self) -> int:
        return self.properties.L2_cache_size

    def describe(self) -> dict:
        """The device, for reports."""
        p = self.properties
        return {
            "name": p.name,
            "capability": f"{p.major}.{p.minor}",
            "multiprocessors": p.multi_processor_count,
            "memory_bytes": p.total_memory,
            "l2_bytes": p.L2_cache_size,
        }

    def finish(self):
        """Wait for the device; raises what it met."""
        torch.cuda.synchronize()

    def release(self):
        """Give unused memory back."""
        torch.cuda.empty_cache()

    def copy(self, repeats: int) -> Timing:
        """A device-to-device copy of `COPIED` bytes, never in a graph (there it is slower)."""
        source = torch.randn(COPIED // 4, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        samples, _ = self._behind_a_wait([lambda: target.copy_(source)], repeats, 1e-4)
        return Timing(tuple(samples))

    def peak(self, call: Callable):
        """(the call's result, bytes allocated at most beyond what was before, the result included)."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before

    def time(self, calls: Sequence[Callable], repeats: int, budget: float) -> Timing:
        """Time warm calls, one after another and round again.

        Raises
        ------
        TooSlow
            Where `FEWEST` calls do not fit into `budget` seconds.
        """
        seconds, host = self._probe(calls[-1])
        count = min(repeats, int(budget / seconds))
        if count < FEWEST:
            raise TooSlow(f"{FEWEST} calls take more than {budget:g} s, one {seconds:.3g} s")
        if seconds > LONG:
            samples, _ = self._queue(calls, count)
            return Timing(tuple(samples), "as called")
        samples, filled = self._behind_a_wait(calls, count, host)
        timing = Timing(tuple(samples), "events" if filled else "as called")
        if filled and timing.ms >= SHORT:
            return timing
        as_called, _ = self._queue(calls, count)
        try:
            samples = self._graph(calls, count, timing.ms)
        except Exception as error:
            note = f"no CUDA graph can be made of it ({first_line(error)})"
            return Timing(tuple(samples if filled else as_called), timing.method, statistics.median(as_called), note)
        return Timing(tuple(samples), "graph", statistics.median(as_called))

    def _probe(self, call) -> tuple[float, float]:
        """Seconds of one call, and of the host's part of it."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        return time.perf_counter() - start, queued - start

    def _queue(self, calls, count: int, wait: float = 0.0) -> tuple[list[float], bool]:
        """Times of `count` calls after a first that is not counted; whether the device began when all were queued."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        torch.cuda.synchronize()
        if wait:
            torch.cuda._sleep(int(wait * CYCLES))
        calls[0]()
        events[0].record()
        for k in range(count):
            calls[(k + 1) % len(calls)]()
            events[k + 1].record()
        filled = not events[0].query()
        torch.cuda.synchronize()
        return [events[k].elapsed_time(events[k + 1]) for k in range(count)], filled

    def _behind_a_wait(self, calls, count: int, host: float) -> tuple[list[float], bool]:
        """Times of `count` calls queued in rounds; False where even one call alone does not fit the queue."""
        samples: list[float] = []
        size = max(1, min(count, QUEUED, int(LONGEST_WAIT / host) - 1))
        failures = 0
        while len(samples) < count:
            size = min(size, count - len(samples))
            some, filled = self._queue(calls, size, min(1.5 * host * (size + 1) + 1e-3, 2 * LONGEST_WAIT))
            if filled:
                samples += some
                continue
            failures += 1
            if failures == 4:
                return some, False
            size, host = max(1, size // 3), 1.5 * host
        return samples, True

    def _graph(self, calls, count: int, ms: float) -> list[float]:
        captured = len(calls) * max(1, math.ceil(GRAPH_MS / (ms * len(calls))))
        captured = max(len(calls), min(captured, MOST_CAPTURED))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for k in range(captured):
                calls[k % len(calls)]()
        graph.replay()
        samples, _ = self._queue([graph.replay], max(10, math.ceil(count / captured)), 0.01)
        return [sample / captured for sample in samples]


def bandwidth(timing: Timing, moved: int) -> float:
    """GB/s of so many bytes."""
    return moved / timing.ms / 1e6


def first_line(error: BaseException) -> str:
    """The exception in one line; with the next one where the first only announces it, as torch.compile's does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' '.join(lines[: 2 if lines[0].endswith(':') else 1])}"

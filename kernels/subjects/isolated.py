"""A subject's function in a process of its own, so that a crash, a hang or a broken CUDA context ends nothing else.

The process gets the same tensors: device, strides, offsets and whole storages, with everything that lies around; what
it writes into them is written here, too. It lives from call to call, and keeps a call's graph while it is needed here.
"""

import collections
import itertools
import os
import signal
import subprocess
import sys
import warnings
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import torch
from torch.autograd.function import once_differentiable

from kernels.subjects.load import ROOT, load
from kernels.subjects.raised import elsewhere
from kernels.subjects.run import Misbehaviour, NoAnswer, pair

LIMIT = 50.0
"""Seconds for one call or one backward: less than `run.TIME_LIMIT`, whose alarm does not reach autograd's threads."""
GRACE = 5.0
"""Seconds after the limit when the process ends itself, for the case that nobody is left to end it."""


class Crashed(RuntimeError):
    """The process ended before it answered."""


class Isolated:
    """The function that `target` names, run elsewhere; differentiable by autograd, once.

    Parameters
    ----------
    target : str
        "FILE.py:NAME" or "MODULE:NAME", as in `kernels.subjects.load`.
    limit : float
        Seconds for an answer, the start of the process included.

    Raises
    ------
    Crashed
        Where the process ended, and by what. The next call gets a fresh one.
    NoAnswer
        After the limit; the process is ended.
    Exception
        What the function raised, by the name of its type and its text; a note has the lines it came from.
    """

    def __init__(self, target: str, limit: float = LIMIT):
        self.target, self.limit = target, limit
        self.child: _Child | None = None

    def __call__(self, x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        if self.child is None or not self.child.alive:
            self.child = _Child(self.target, self.limit)
        return _Elsewhere.apply(self.child, x, gate_x, gate_a, a_param, segment_pos, h0)


class _Elsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, child, *inputs):
        ctx.set_materialize_grads(False)
        ctx.graph = graph = _Graph(child)
        packed = graph.storages.pack(inputs)
        packed, differentiable = child.ask("forward", graph.number, packed, ctx.needs_input_grad[1:])
        outputs = graph.storages.unpack(packed)
        pairs = zip(outputs, differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, flag in pairs if output is not None and not flag))
        # what is overwritten before the backward would be sent, and no version in the other process would tell
        ctx.save_for_backward(*inputs, *outputs)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *cotangents):
        graph, _ = ctx.graph, ctx.saved_tensors
        packed = graph.child.ask("backward", graph.number, graph.storages.pack(cotangents))
        return None, *graph.storages.unpack(packed)


class _Graph:
    """One call's graph in the other process, forgotten there when this is gone here."""

    numbers = itertools.count()

    def __init__(self, child: "_Child"):
        self.child, self.number = child, next(self.numbers)
        self.storages = _Storages()

    def __del__(self):
        # not sent at once: garbage may be collected in the middle of another message
        self.child.forgotten.append(self.number)


class _Child:
    """The process, as it is seen from here."""

    def __init__(self, target: str, limit: float):
        self.target, self.limit, self.alive = target, limit, True
        self.forgotten: collections.deque[int] = collections.deque()
        self.connection, theirs = Pipe()
        code = (
            f"import sys; sys.path[:] = {[str(ROOT), *sys.path]!r}; from kernels.subjects.isolated import serve; "
            f"serve({theirs.fileno()}, {target!r}, {limit + GRACE!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self.end = weakref.finalize(self, _end, self.process, self.connection)  # at the latest when this process ends

    def ask(self, *request):
        """The other process's answer to a request."""
        if not self.alive:
            raise Crashed("its process, which held what the backward needs, has ended since the call")
        self.alive = False  # until it has answered
        forgotten = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
        try:
            self.connection.send((_settings(), forgotten, request))
            if not self.connection.poll(self.limit):
                raise NoAnswer(f"{self.target} gave no answer within {self.limit:.0f} s")
            raised, answer, self.alive = self.connection.recv()
        except (EOFError, OSError):
            raise Crashed(f"its process {self._fate()}") from None
        finally:
            if not self.alive:
                self.end()
        if raised:
            name, text, lines = answer
            # the type may be one that only the other process can import
            error = (Misbehaviour if name == "Misbehaviour" else type(name, (Exception,), {}))(text)
            if lines:
                error.add_note(lines)
            raise error
        return answer

    def _fate(self) -> str:
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "hung up"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _end(process: subprocess.Popen, connection: Connection):
    connection.close()
    process.kill()
    process.wait()


class _Storages:
    """Storages that both processes hold under one name; each side sends the bytes that the other has not."""

    def __init__(self):
        self.here: dict[str, torch.Tensor] = {}
        self.there: dict[str, bytes] = {}

    def pack(self, tensors):
        """How each tensor (or None) lies in its storage, and the storages that are new or have changed."""
        views = []
        for tensor in tensors:
            if tensor is None:
                views.append(None)
                continue
            whole = _whole(tensor.untyped_storage(), tensor.device)
            name = self._name(whole) or f"{os.getpid()}-{len(self.here)}"
            self.here[name] = whole
            views.append((name, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()))
        changed = {}
        for name, whole in self.here.items():
            content = whole.cpu().numpy().tobytes()
            if self.there.get(name) != content:
                changed[name] = str(whole.device), content
                self.there[name] = content
        return views, changed

    def _name(self, whole: torch.Tensor) -> str | None:
        """What this storage is called already; empty ones lie nowhere and are all different."""
        same = (name for name, other in self.here.items() if whole.numel() and other.data_ptr() == whole.data_ptr())
        return next(same, None)

    def unpack(self, packed):
        """The tensors that the other side packed, in storages of this side."""
        views, changed = packed
        for name, (device, content) in changed.items():
            if name not in self.here:
                self.here[name] = torch.empty(len(content), dtype=torch.uint8, device=device)
            if content:
                self.here[name].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            self.there[name] = content
        return [None if view is None else self._view(*view) for view in views]

    def _view(self, name, dtype, offset, shape, stride):
        whole = self.here[name]
        return torch.empty(0, dtype=dtype, device=whole.device).set_(whole.untyped_storage(), offset, shape, stride)


def _whole(storage, device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _settings():
    """What a call here depends on beside its arguments: run.py's NaN in new memory, and the number of threads."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
    )


# --- in the other process


def serve(descriptor: int, target: str, limit: float):
    """Answer requests until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter|numpy\..*")
    connection, function = Connection(descriptor), None
    graphs: dict[int, tuple] = {}
    while True:
        try:
            settings, forgotten, (what, *arguments) = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, limit)  # its default action, the end, needs no help from Python
        for number in forgotten:
            graphs.pop(number, None)
        raised, alive = False, True
        try:
            _apply(*settings)
            function = function or load(target).function
            answer = _forward(function, graphs, *arguments) if what == "forward" else _backward(graphs, *arguments)
        except BaseException as error:  # sys.exit and pytest.skip are answers to be sent, too
            raised, answer, alive = True, elsewhere(error), _cuda_works()
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send((raised, answer, alive))


def _apply(deterministic, warn_only, threads):
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _forward(function, graphs, number, packed, wanted):
    storages = _Storages()
    inputs = storages.unpack(packed)
    for tensor, flag in zip(inputs, wanted, strict=True):
        if flag:
            tensor.requires_grad_()
    *tokens, segment_pos, h0 = inputs
    outputs = pair(function(*tokens, segment_pos=segment_pos, h0=h0), h_last=False)
    graphs[number] = storages, inputs, outputs
    differentiable = [output is not None and output.requires_grad for output in outputs]
    return storages.pack([None if output is None else output.detach() for output in outputs]), differentiable


def _backward(graphs, number, packed):
    storages, inputs, outputs = graphs[number]
    pairs = [(o, c) for o, c in zip(outputs, storages.unpack(packed), strict=True) if c is not None and o.requires_grad]
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found: tuple = (None,) * len(wanted)
    if pairs:
        of, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(of, wanted, given, allow_unused=True, retain_graph=True)
    gradients = iter(found)
    return storages.pack([next(gradients) if t is not None and t.requires_grad else None for t in inputs])


def _cuda_works() -> bool:
    """False after an error that leaves the process's CUDA context unusable."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True

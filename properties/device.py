"""Which device a run uses. Import nothing of Triton before `choose` has run."""

import os
import sys

WORKERS_PER_GPU = 16
"""Most of an example's time is the float64 oracle's on the CPU: several workers keep one GPU in use."""


def available(device: str) -> bool:
    """Whether tensors can be put there; the CPU always can hold them."""
    import torch

    return device == "cpu" or (device == "cuda" and torch.cuda.is_available())


def workers(device: str) -> int:
    """As many processes as cores, but no more than keep the GPUs busy."""
    cores = len(os.sched_getaffinity(0))
    if device == "cpu":
        return cores
    import torch

    gpus = torch.cuda.device_count()
    return min(cores, WORKERS_PER_GPU * gpus) if gpus else cores


def use_one_gpu(worker: int):
    """Let this process see one GPU only, the workers' in turn; before CUDA is used."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if names and names != [""]:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[worker % len(names)]


def choose(requested: str | None = None) -> str:
    """The device for this process: "cuda" where there is one, else "cpu" with Triton's interpreter switched on.

    Raises
    ------
    ValueError
        For an unknown device, or "cuda" where there is none.
    RuntimeError
        For "cpu" where Triton was imported before, without its interpreter.
    """
    if requested not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda; got {requested!r}")
    if requested is not None and not available(requested):
        raise ValueError("device cuda was asked for, but PyTorch sees no CUDA device")
    device = requested or ("cuda" if available("cuda") else "cpu")
    if device == "cpu":
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError("Triton was imported before the device was chosen: set TRITON_INTERPRET=1 yourself")
        os.environ["TRITON_INTERPRET"] = "1"
    return device

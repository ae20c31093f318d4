"""Which device a run uses. Import nothing of Triton before `choose` has run."""

import os
import sys


def choose(requested: str | None = None) -> str:
    """The device for this process: "cuda" where there is one, else "cpu" with Triton's interpreter switched on.

    Raises
    ------
    ValueError
        For an unknown device, or "cuda" where there is none.
    """
    import torch

    if requested not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda; got {requested!r}")
    available = torch.cuda.is_available()
    if requested == "cuda" and not available:
        raise ValueError("device cuda was asked for, but PyTorch sees no CUDA device")
    device = requested or ("cuda" if available else "cpu")
    if device == "cpu":
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError("Triton was imported before the device was chosen: set TRITON_INTERPRET=1 yourself")
        os.environ["TRITON_INTERPRET"] = "1"
    return device

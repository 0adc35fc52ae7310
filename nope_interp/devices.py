"""Whether a torch device can be used here."""

import torch

from nope_interp.errors import UserError


def check_device(device: str) -> None:
    """Raise UserError where `device` is no device of this machine that holds numbers.

    Args:
        device: a torch device's name, such as `cuda:0`.
    """
    try:
        torch.zeros(1, device=device).item()
    # torch tells an unknown device, a missing one and the meta device apart by these.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"the device {device!r} cannot be used here: choose cpu, or another torch device."
        ) from error

"""Whether a torch device can be used here."""

import re

from nope_interp.errors import UserError, shown

# Those of torch's kinds that hold numbers.
_KINDS = "cpu|cuda|mps|xpu|hpu|mtia|npu|xla"


def check_device_name(device: str) -> None:
    """Raise UserError for what is no torch device anywhere; loads nothing heavy."""
    if not isinstance(device, str):
        raise UserError(f"the device is {shown(device)}: give its name, such as 'cpu' or 'cuda:0'.")
    if not re.fullmatch(rf"({_KINDS})(:\d{{1,4}})?", device):
        raise _unusable(device)


def check_device(device: str) -> None:
    """Raise UserError where `device` is no device of this machine that holds numbers.

    Args:
        device: a torch device's name, such as `cuda:0`.
    """
    import torch  # `check_device_name` does without

    check_device_name(device)
    try:
        torch.zeros(1, device=device).item()
    # torch tells a device that it does not know from a missing one by these.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise _unusable(device) from error


def _unusable(device: str) -> UserError:
    return UserError(
        f"the device {device!r} cannot be used here: choose cpu, or another torch device."
    )

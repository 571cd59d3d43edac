"""Devices that a user names."""

from __future__ import annotations

import torch


def device_of(name: str, field: str = "device=") -> torch.device:
    """The device of this name, `auto` being a GPU where there is one; a clear error where it is not there. `field` is
    how the user gave it: a setting, or an option of a command."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise ValueError(f"{field}'{name}' must be auto, cpu, cuda or cuda:N") from e
    if device.type == "cuda":
        _check_there(device, f"{field}'{name}'", field)
    return device


def _check_there(device: torch.device, said: str, field: str) -> None:
    if not torch.cuda.is_available():
        raise ValueError(f"{said} but torch sees no CUDA device; use {field}cpu, or see `acclimate doctor`")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        known = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ValueError(f"{said} but torch sees {count} CUDA device{'s' if count > 1 else ''}, {known}")

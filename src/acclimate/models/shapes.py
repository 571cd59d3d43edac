"""The shapes of inputs that models take."""

from __future__ import annotations


def need_images(who: str, shape: tuple[int, ...]) -> None:
    """An error for inputs that are no images, which says what model they want."""
    if len(shape) != 3:
        raise ValueError(
            f"{who}: needs images [channels, height, width], got inputs of shape {shape}; without model= the kind of "
            "data chooses one: mlp for rows of a table, window-cnn for windows, text for texts"
        )

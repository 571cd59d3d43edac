"""What a record needs of a task and does not find: one sentence, for a refusal or an error; None where it is there."""

from __future__ import annotations

from ..core import Task


def need(missing: str | None) -> None:
    """Raise the sentence that one of the functions below gives as an error."""
    if missing:
        raise ValueError(missing)


def images(task: Task, who: str, purpose: str) -> str | None:
    """Images, of any height and width."""
    if len(task.shape) == 3 and task.tokens is None:
        return None
    kind = "are token ids" if task.tokens is not None else f"have shape {task.shape}"
    return f"{who} needs images to {purpose}, and these inputs {kind}"


def pixels(task: Task, who: str, purpose: str) -> str | None:
    """Images whose values are pixels, for records that clip what they make of them to 0..1."""
    if missing := images(task, who, purpose):
        return missing
    if task.pixels:
        return None
    return (
        f"{who} needs pixels to {purpose}, uint8 or floats from 0 to 1, and these floats lie outside: scale them, and "
        "set mean and std of the data record where the model is to have them normalised"
    )


def numbers(task: Task, who: str, purpose: str) -> str | None:
    """Inputs that one can compute with and differentiate by: pixels or features, not token ids."""
    if task.tokens is None:
        return None
    return f"{who} needs inputs that are numbers to {purpose}, and these are token ids, which have no gradient"


def square_images(task: Task, who: str) -> str | None:
    """Images that a quarter turn leaves in shape."""
    if missing := images(task, who, "turn"):
        return missing
    if task.shape[-1] == task.shape[-2]:
        return None
    return f"{who} needs square images to turn, and these inputs have shape {task.shape}"


def feature_maps(task: Task, who: str) -> str | None:
    """Feature maps [B, C, H, W] on the way to the head."""
    if task.stages:
        return None
    return f"{who} needs feature maps, and this model has none; set model=cnn, a ResNet, or name modules in `after`"


def norm_layers(task: Task, who: str) -> str | None:
    """Normalisation layers with parameters, for records whose `params` says which parameters they tune."""
    if task.norm:
        fixed = _fixed_norm(task, who)
        return f"{fixed}, or set params='all'" if fixed else None
    return f"{who} needs normalisation layers, and this model has none; set params='all' or the model's norm"


def _fixed_norm(task: Task, who: str) -> str | None:
    """Normalisation layers that have statistics alone: nothing of them can be tuned."""
    if task.norm & frozenset(task.params):
        return None
    return (
        f"{who} tunes normalisation layers, and those of this model have no parameters that are trained (affine=False, "
        "or requires_grad=False): give them some"
    )


def batch_norm(task: Task, who: str, maps: bool = False) -> str | None:
    """Batch norm, for records that change its statistics; with `maps` in a model that has feature maps."""
    if not task.has_batch_norm:
        return f"{who} needs batch norm, and this model has none; build it with norm='batch'"
    if maps and not task.stages:
        return f"{who} needs batch norm over feature maps, and this model has none; build a CNN with norm='batch'"
    return None


def batch_statistics(task: Task, who: str, maps: bool = False) -> str | None:
    """Batch norm, for adapters that do nothing but replace its statistics."""
    missing = batch_norm(task, who, maps)
    if missing and task.norm and not task.has_batch_norm:
        return f"{missing}, or use tent or sar, which tune the layers that it has (layer or group norm)"
    return missing


def tunable_norm(task: Task, who: str) -> str | None:
    """Normalisation layers with parameters, for records that tune nothing else."""
    if task.norm:
        return _fixed_norm(task, who)
    return f"{who} needs normalisation layers, and this model has none; build it with norm='batch' or 'group'"

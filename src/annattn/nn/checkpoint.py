"""Checkpoints: weights as safetensors, everything else as JSON beside them; written whole or not at all."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from annattn.attention import MECHANISMS, AttentionConfig
from annattn.checks import require_instance
from annattn.errors import InputError
from annattn.files import as_json, write_bytes, write_text
from annattn.nn.transformer import Transformer, TransformerConfig
from annattn.seeds import check_seed

__all__ = [
    "check_tensors",
    "checked_moments",
    "checkpoint_files",
    "current_names",
    "load_model",
    "moments_of",
    "read_attention",
    "read_config",
    "read_step",
    "read_tensors",
    "save_model",
    "write_attention",
    "write_config",
    "write_tensors",
]

FORMAT = 1
_RENAMED_OPTIONS = {"alike": "identity_init"}


def moments_of(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each weight, by names of one file: adam.3.exp_avg is of the fourth weight.

    >>> moments_of(torch.optim.AdamW([nn.Parameter(torch.ones(1))]))
    {}
    """
    return {
        f"adam.{index}.{name}": torch.as_tensor(value)
        for index, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
    }


def checked_moments(
    tensors: dict[str, Tensor], weights: list[nn.Parameter], path: Path, *, all_moved: bool = True
) -> dict[int, dict[str, Tensor]]:
    """The inverse of `moments_of`, among other tensors: the "state" of an optimiser's `state_dict`.

    InputError unless it fits the weights; with `all_moved=False` some of them may have none, since no step moved them.

    >>> found = {"adam.0.step": torch.tensor(5.0), "adam.0.exp_avg": torch.ones(1), "adam.0.exp_avg_sq": torch.ones(1)}
    >>> checked_moments({"step": torch.tensor(5), **found}, [nn.Parameter(torch.ones(1))], Path("state"))[0]["step"]
    tensor(5.)
    """
    found = {name: tensor for name, tensor in tensors.items() if name.startswith("adam.")}
    moved = range(len(weights)) if all_moved else [at for at in range(len(weights)) if f"adam.{at}.step" in found]
    shapes = {"step": torch.Size(), "exp_avg": None, "exp_avg_sq": None}
    wanted = {
        f"adam.{index}.{name}": weights[index].shape if shape is None else shape
        for index in moved
        for name, shape in shapes.items()
    }
    given = {name: tensor.shape for name, tensor in found.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    if wrong:
        raise InputError(
            str(path), given=f"{wrong[0]} of shape {given.get(wrong[0])}", expected=str(wanted.get(wrong[0]))
        )
    for name, tensor in found.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            said = "NaN or infinity" if tensor.is_floating_point() else tensor.dtype
            raise InputError(f"{name} of {path}", given=said, expected="finite numbers")
    return {index: {name: found[f"adam.{index}.{name}"] for name in shapes} for index in moved}


def read_step(tensors: dict[str, Tensor], steps: int, path: Path) -> int:
    """The step at which this state of a run was written; InputError unless it is one of 0 to `steps`.

    >>> read_step({"step": torch.tensor(5)}, 10, Path("state"))
    5
    """
    found = tensors.get("step", torch.tensor(-1))
    if found.numel() != 1 or found.is_floating_point() or not 0 <= found.item() <= steps:
        given = found.tolist() if "step" in tensors else "none"
        raise InputError(f"step of {path}", given=given, expected=f"one of 0 to {steps}")
    return int(found)


def save_model(model: Transformer, path: str | Path, *, notes: dict[str, Any] | None = None) -> Path:
    """Write `path`.safetensors and `path`.json: the weights, and the config with any notes (command, seed, errors).

    >>> import tempfile
    >>> config = TransformerConfig(input_vocab=4, target_vocab=2, length=8, dim=8)
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = save_model(Transformer(config), Path(folder.name) / "tiny", notes={"seed": 0})
    >>> load_model(path).config == config
    True
    >>> folder.cleanup()
    """
    described, weights = checkpoint_files(path)
    require_instance("model", model, Transformer, "a Transformer")
    try:
        described_as = {"format": FORMAT, "model": write_config(model.config), "notes": notes or {}}
        if any(seed is not None for seed in model.drawn):
            described_as["drawn"] = model.drawn
        text = as_json(described_as)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise InputError("notes", given=str(wrong), expected="what JSON can hold") from None
    described.parent.mkdir(parents=True, exist_ok=True)
    # The weights first: a JSON that is there promises weights that are there.
    write_tensors(model.state_dict(), weights)
    write_text(text, described)
    return described.with_suffix("")


def load_model(path: str | Path) -> Transformer:
    """The model saved at `path`, with or without its suffix; a wrong or damaged file is an InputError naming it."""
    described, weights = checkpoint_files(path)
    try:
        data = json.loads(described.read_text())
    except FileNotFoundError:
        raise InputError("checkpoint", given=str(described), expected="a file that exists") from None
    except OSError as wrong:
        raise InputError("checkpoint", given=str(path), expected="a file", hint=str(wrong.strerror)) from None
    except (UnicodeDecodeError, ValueError, RecursionError) as wrong:
        raise InputError("checkpoint", given=str(described), expected="JSON", hint=str(wrong)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"format of {described}", given=found, expected=str(FORMAT))
    config, tensors = read_config(data.get("model"), str(described)), read_tensors(weights)
    drawn = _read_drawn(data.get("drawn"), config, str(described))
    # One dtype for all, as model.half() makes it; a mixture is judged by the check.
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    dtype = kinds.pop() if len(kinds) == 1 else torch.float32
    with torch.device("meta"):
        # Shapes alone, so that a config of another size is known before it takes memory.
        check_tensors(Transformer(config).to(dtype), tensors, str(weights))
    model = Transformer(config).to(dtype)
    model.load_state_dict(tensors)
    if drawn is not None:
        model.drawn = drawn
    return model


def _read_drawn(data: Any, config: TransformerConfig, where: str) -> list[int | None] | None:
    """The seeds of the layers' hash functions, where `draw` replaced those of the config."""
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != config.layers:
        raise InputError(f"drawn of {where}", given=repr(data)[:80], expected="a seed for each layer, or none at all")
    return [None if seed is None else check_seed(seed) for seed in data]


def checkpoint_files(path: str | Path) -> tuple[Path, Path]:
    """The JSON and the weights of a checkpoint named with or without one of their suffixes.

    >>> [one.name for one in checkpoint_files("runs/model.json")]
    ['model.json', 'model.safetensors']
    """
    path = Path(path)
    if not path.name or "\0" in path.name:
        raise InputError("checkpoint", given=repr(str(path)), expected="the name of a model")
    name = path.name.removesuffix(".json").removesuffix(".safetensors")
    return path.with_name(f"{name}.json"), path.with_name(f"{name}.safetensors")


def check_tensors(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Say which of these weights do not fit the model, if any.

    >>> config = TransformerConfig(input_vocab=4, target_vocab=2, length=8, dim=8)
    >>> check_tensors(Transformer(config), Transformer(config, seed=1).state_dict(), "memory")
    """
    wanted = model.state_dict()
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or extra:
        raise InputError(
            f"weights of {where}", given=f"missing {missing[:3]}, unknown {extra[:3]}", expected="those of its config"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise InputError(
                f"{name} of {where}",
                given=f"{tensor.dtype} {tuple(tensor.shape)}",
                expected=f"{wanted[name].dtype} {tuple(wanted[name].shape)}",
            )
        if not tensor.isfinite().all():
            raise InputError(f"{name} of {where}", given="NaN or infinity", expected="finite numbers")


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """A config as JSON-ready data.

    >>> write_config(TransformerConfig(input_vocab=4, target_vocab=2, length=8))["attention"]
    [{'mechanism': 'softmax', 'beta': 1.0, 'dropout': 0.0}]
    """
    data = asdict(config)
    data["attention"] = [write_attention(mechanism) for mechanism in config.attention]
    data["rotary"], data["recency"] = list(config.rotary), list(config.recency)
    return data


def read_config(data: Any, where: str = "config") -> TransformerConfig:
    """The inverse of `write_config`.

    >>> config = TransformerConfig(input_vocab=4, target_vocab=2, length=8)
    >>> read_config(write_config(config)) == config
    True
    """
    try:
        options = current_names(dict(data))
        options["attention"] = tuple(read_attention(mechanism) for mechanism in options["attention"])
        return TransformerConfig(**options)
    except InputError as wrong:
        raise InputError(f"model of {where}", given="an impossible config", expected=str(wrong)) from None
    except (TypeError, KeyError, ValueError, AttributeError) as wrong:
        raise InputError(f"model of {where}", given=repr(wrong), expected="the fields of TransformerConfig") from None


def current_names(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a TransformerConfig that an earlier version wrote, by the names they have now.

    >>> current_names({"alike": True, "positions": "waves"})
    {'identity_init': True, 'positions': 'prime'}
    """
    renamed = {_RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}
    return renamed | ({"positions": "prime"} if renamed.get("positions") == "waves" else {})


def write_attention(config: AttentionConfig) -> dict[str, Any]:
    """The description of a mechanism as JSON-ready data.

    >>> from annattn.nn import SoftmaxConfig
    >>> write_attention(SoftmaxConfig(beta=2.0))
    {'mechanism': 'softmax', 'beta': 2.0, 'dropout': 0.0}
    """
    names = [name for name, mechanism in MECHANISMS.items() if mechanism.config is type(config)]
    if not names:
        raise InputError("mechanism", given=type(config).__name__, expected="one that is listed in MECHANISMS")
    return {"mechanism": names[0], **asdict(config)}


def read_attention(data: dict[str, Any]) -> AttentionConfig:
    """The inverse of `write_attention`; what it does not know is an error.

    >>> read_attention({"mechanism": "softmax", "beta": 2.0})
    SoftmaxConfig(beta=2.0, dropout=0.0)
    """
    options = dict(data)
    name = options.pop("mechanism", None)
    if name not in MECHANISMS:
        raise InputError("mechanism", given=repr(name), expected=f"one of {', '.join(MECHANISMS)}")
    kind = MECHANISMS[name].config
    unknown = sorted(set(options) - {field.name for field in fields(kind)})
    if unknown:
        raise InputError(f"options of {name}", given=unknown, expected=f"those of {kind.__name__}")
    return kind(**options)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write safetensors, whole or not at all: a reader finds the old file or the new one."""
    write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}), path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or an InputError that names it."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError("weights", given=str(path), expected="a file that exists") from None
    except (SafetensorError, OSError, ValueError, KeyError) as wrong:
        raise InputError("weights", given=str(path), expected="a whole safetensors file", hint=str(wrong)) from None

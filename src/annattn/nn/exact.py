"""Transformers of exact-match attention and ReLU networks with whole weights: programs that were compiled to weights.

Token i plays machine i. A layer applies a ReLU network to every token, which gives one query per port, one key and one
value per message, and the words that the token keeps. A head, for one message and one port, is exact-match attention.
A query is (token, port) and a key is (receiver, port), each as one number. At most one key equals a query, so the mean
that attention takes is over one value, and nothing is rounded.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from annattn.attention import exact_match_attention
from annattn.checks import LARGEST_COUNT, keep_counts, require_count
from annattn.errors import CollisionError, InputError
from annattn.files import write_bytes
from annattn.nn.checkpoint import check_tensors

__all__ = ["ExactConfig", "ExactLayerConfig", "ExactTransformer"]

FORMAT = "annattn exact transformer 1"


@dataclass(frozen=True)
class ExactLayerConfig:
    """A layer: messages per token, ports, words per message with their mark, words kept, and the network's widths."""

    messages: int
    ports: int
    value_width: int
    kept: int
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        keep_counts(self, "messages", "ports", "value_width", "kept", least=0, most=LARGEST_COUNT)
        made = self.kept + self.ports + self.messages + self.messages * self.value_width
        _check_widths(self.widths, last=made)

    @property
    def words(self) -> int:
        """How many words a token has after it."""
        return self.kept + (self.ports * self.value_width if self.messages else 0)


@dataclass(frozen=True)
class ExactConfig:
    """Tokens, words per token in and out, how many tokens have an output, and the layers; `dtype` is the weights'."""

    tokens: int
    inputs: int
    outputs: int
    output_tokens: int
    layers: tuple[ExactLayerConfig, ...]
    output_widths: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        keep_counts(self, "tokens", "inputs", "outputs", "output_tokens", least=0, most=LARGEST_COUNT)
        words = 1 + self.inputs
        for layer in self.layers:
            _check_widths(layer.widths, first=words)
            words = layer.words
        _check_widths(self.output_widths, first=words)


class ExactTransformer(nn.Module):
    """Whole numbers in, whole numbers out, exactly: made by `annattn.compiler.to_module`, or loaded from a file.

    >>> from annattn.compiler import to_module
    >>> from annattn.mpc.programs import sum_program
    >>> model = to_module(sum_program(n=5, arity=2))
    >>> model(torch.tensor([[1], [2], [3], [4], [250]]))
    tensor([[4.]])
    """

    number: Tensor

    def __init__(self, config: ExactConfig) -> None:
        super().__init__()
        self.config = config
        dtype = {"float32": torch.float32, "float64": torch.float64}.get(config.dtype)
        if dtype is None:
            raise InputError("dtype", given=config.dtype, expected="float32 or float64")
        self.layers = nn.ModuleList(ExactLayer(layer, number, dtype) for number, layer in enumerate(config.layers))
        self.output = _network(config.output_widths, dtype)
        self.register_buffer("number", torch.arange(config.tokens, dtype=dtype)[:, None])
        self.requires_grad_(False)

    def forward(self, words: Shaped[Tensor, "*batch tokens inputs"]) -> Float[Tensor, "*batch outputs width"]:
        """The output words of the tokens that have one."""
        wanted = (self.config.tokens, self.config.inputs)
        if words.shape[-2:] != wanted:
            raise InputError("words", given=f"shape {tuple(words.shape)}", expected=f"(..., {wanted[0]}, {wanted[1]})")
        batch = words.reshape(-1, *wanted).to(self.number)
        x = torch.cat([self.number.expand(len(batch), -1, -1), batch], dim=-1)
        for layer in self.layers:
            x = layer(x)
        out = self.output(x)[:, : self.config.output_tokens]
        return out.reshape(*words.shape[:-2], *out.shape[1:])

    def run(self, words: ArrayLike) -> NDArray[np.uint64]:
        """The output for one input, in the manner of `annattn.mpc.run`: one number per token, or one row.

        >>> from annattn.compiler import to_module
        >>> from annattn.mpc.programs import broadcast_program
        >>> to_module(broadcast_program(n=3, arity=2)).run([7, 0, 0])
        array([7, 7, 7], dtype=uint64)
        """
        given = np.asarray(words, dtype=np.int64).reshape(self.config.tokens, -1)
        out = self(torch.from_numpy(given)).numpy().astype(np.uint64)
        return out[:, 0] if self.config.outputs == 1 else out

    @property
    def parameters_count(self) -> int:
        """The number of weights and biases."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def nonzeros(self) -> int:
        """The number of weights and biases that are not 0."""
        return sum(int(torch.count_nonzero(parameter)) for parameter in self.parameters())

    def __str__(self) -> str:
        layers = self.config.layers
        heads = max((one.messages * one.ports for one in layers), default=0)
        networks = [*(layer.widths for layer in layers), self.config.output_widths]
        return (
            f"{len(layers)} layers, {heads} heads, queries and keys 1 wide, "
            f"values {max((one.value_width for one in layers), default=0)} wide; ReLU networks up to "
            f"{max(map(len, networks)) - 2} deep and {max(max(widths) for widths in networks)} wide; "
            f"{self.parameters_count:,} parameters, {self.nonzeros:,} of them not 0, {self.config.dtype}"
        )

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file: the weights, and the config as JSON in its metadata."""
        path = Path(path).with_suffix(".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"format": FORMAT, "config": json.dumps(asdict(self.config))}
        write_bytes(save({name: part.contiguous() for name, part in self.state_dict().items()}, metadata), path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "ExactTransformer":
        """The transformer saved at `path`; a wrong or damaged file is an InputError that names it.

        >>> import tempfile
        >>> from annattn.compiler import to_module
        >>> from annattn.mpc.programs import sum_program
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = to_module(sum_program(n=5, arity=2)).save(f"{folder}/sum")
        ...     ExactTransformer.load(path).run([1, 2, 3, 4, 250])
        array([4], dtype=uint64)
        """
        path = Path(path).with_suffix(".safetensors")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except FileNotFoundError:
            raise InputError("weights", given=str(path), expected="a file that exists") from None
        except (SafetensorError, OSError, ValueError) as wrong:
            raise InputError("weights", given=str(path), expected="a whole safetensors file", hint=str(wrong)) from None
        if metadata.get("format") != FORMAT:
            raise InputError(f"format of {path}", given=metadata.get("format"), expected=FORMAT)
        try:
            config = _read_config(json.loads(metadata["config"]))
            with torch.device("meta"):  # shapes alone, before anything of a size that a file says is made
                check_tensors(cls(config), tensors, str(path))
            model = cls(config)
            model.load_state_dict(tensors)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as wrong:
            hint = str(wrong).splitlines()[0]
            raise InputError(f"weights of {path}", given="others", expected="those of its config", hint=hint) from None
        return model


class ExactLayer(nn.Module):
    """A ReLU network on every token, then exact-match attention from every message to every port."""

    def __init__(self, config: ExactLayerConfig, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.number = config, number
        self.local = _network(config.widths, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The words that a token keeps, and for every port the value that arrived, or zeros."""
        c = self.config
        sizes = [c.kept, c.ports, c.messages, c.messages * c.value_width]
        kept, query, key, value = self.local(x).split(sizes, dim=-1)
        if not c.messages:
            return kept
        self._one_sender_per_port(key, len(x[0]))
        batch, n = x.shape[:2]
        # Heads in the order (message, port): all ports ask for every message.
        asked = query.transpose(1, 2)[:, None].expand(batch, c.messages, c.ports, n)
        offered = key.transpose(1, 2)[:, :, None].expand(batch, c.messages, c.ports, n)
        carried = value.reshape(batch, n, c.messages, c.value_width).transpose(1, 2)[:, :, None]
        carried = carried.expand(batch, c.messages, c.ports, n, c.value_width)
        out = exact_match_attention(
            asked.reshape(batch, -1, n, 1), offered.reshape(batch, -1, n, 1), carried.flatten(1, 2)
        )
        # At most one message arrives at a port: the others are zeros.
        arrived = out.reshape(batch, c.messages, c.ports, n, c.value_width).sum(dim=1)
        return torch.cat([kept, arrived.permute(0, 2, 1, 3).flatten(2)], dim=-1)

    def _one_sender_per_port(self, key: Tensor, n: int) -> None:
        """Raise if two messages go to one port: their mean would be a wrong number that looks right."""
        places = n * self.config.ports
        at = key.flatten(1).long()
        there = (at >= 0) & (at < places)
        counts = torch.zeros(len(at), places, dtype=torch.long, device=at.device)
        counts.scatter_add_(1, at.clamp(0, places - 1), there.long())
        if bool((counts > 1).any()):
            place = int((counts > 1).any(dim=0).nonzero()[0])
            token, port = divmod(place, self.config.ports)
            detail = f"{int(counts.max())} messages for port {port}; the program broke its own rule on this input"
            raise CollisionError(layer=self.number, head=port, token=token, detail=detail)


def _check_widths(widths: Sequence[int], *, first: int | None = None, last: int | None = None) -> None:
    """Raise InputError unless a network of these widths exists, and begins and ends with the words that there are."""
    for width in widths:
        require_count("width of a network", width, least=0, most=LARGEST_COUNT)
    ends = ((0, first), (-1, last))
    if len(widths) < 2 or any(wanted is not None and widths[at] != wanted for at, wanted in ends):
        wanted = ", ".join(f"{name} {width}" for name, width in (("from", first), ("to", last)) if width is not None)
        raise InputError("widths of a network", given=list(widths), expected=wanted)


def _network(widths: Sequence[int], dtype: torch.dtype) -> nn.Sequential:
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        stages += [nn.Linear(before, after, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*stages[:-1])


def _read_config(data: dict[str, Any]) -> ExactConfig:
    layers = tuple(ExactLayerConfig(**{**layer, "widths": tuple(layer["widths"])}) for layer in data["layers"])
    return ExactConfig(**{**data, "layers": layers, "output_widths": tuple(data["output_widths"])})

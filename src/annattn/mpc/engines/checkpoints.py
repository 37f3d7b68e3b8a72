"""The mail of the last finished round in a folder, so that a run whose driver died can go on."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from annattn.errors import InputError
from annattn.files import replacing, write_json
from annattn.mpc.model import Limits, Mail, Protocol
from annattn.mpc.trace import RoundLoad

__all__ = ["Checkpoints", "identity", "load_inbox", "save_inbox"]

_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile)
_ANEW = "remove the folder to start anew"


def identity(protocol: Protocol, shards: int, given: Any) -> dict[str, Any]:
    """What must be the same for a run to go on from a checkpoint: protocol, shards, and a description of the input."""
    plain = (bool, int, float, str, type(None))
    return {
        "protocol": f"{type(protocol).__module__}.{type(protocol).__qualname__}",
        "limits": asdict(protocol.limits),
        "rounds": protocol.rounds,
        "parameters": {name: value for name, value in vars(protocol).items() if isinstance(value, plain)},
        "shards": shards,
        "input": given,
    }


def save_inbox(folder: Path, round_: int, shard: int, mail: Mail) -> None:
    """Write what a shard's machines received before a round; in a worker."""
    where = _round_folder(folder, round_)
    where.mkdir(parents=True, exist_ok=True)
    with replacing(where / f"shard-{shard:05}.npz") as file:
        np.savez(file, dest=mail.dest, src=mail.src, words=mail.words)


def load_inbox(folder: Path, round_: int, shard: int, own: range) -> Mail:
    """What `save_inbox` wrote for the machines of a shard; in a worker."""
    path = _round_folder(folder, round_) / f"shard-{shard:05}.npz"
    try:
        with np.load(path, allow_pickle=False) as columns:
            mail = Mail(columns["dest"], columns["src"], columns["words"])
        if len(mail) and not (own.start <= mail.dest.min() <= mail.dest.max() < own.stop):
            raise ValueError(f"mail for machines that are not {own.start} to {own.stop - 1}")
        return mail
    except _UNREADABLE as error:
        hint = f"{error}; {_ANEW}"
        raise InputError("checkpoint", given=str(path), expected="mail that a run saved", hint=hint) from None


@dataclass(frozen=True)
class Checkpoints:
    """The folder of one run: the mail before one round, the loads of all rounds before it, and whose they are."""

    folder: Path
    whose: dict[str, Any]

    def finished(self) -> int:
        """The round to go on with: 0 if nothing was saved. Refused if the folder belongs to another run."""
        path = self.folder / "run.json"
        if not path.exists():
            return 0
        try:
            saved = json.loads(path.read_text())
            round_, whose = int(saved["round"]), dict(saved["whose"])
        except _UNREADABLE:
            raise _damaged(path) from None
        mine = json.loads(json.dumps(self.whose))
        if whose != mine:
            other = [name for name in mine if whose.get(name) != mine[name]]
            given = f"{self.folder}, of a run with different {' and '.join(other)}"
            raise InputError("checkpoints", given=given, expected="an empty folder, or one of the same run", hint=_ANEW)
        if not 0 < round_ < mine["rounds"]:
            raise _damaged(path)
        return round_

    def loads(self, limits: Limits) -> list[RoundLoad]:
        """The loads of the rounds that were finished."""
        round_ = self.finished()
        path = self.folder / f"loads-{round_:05}.npz"
        try:
            with np.load(path, allow_pickle=False) as saved:
                sent, received = saved["sent"], saved["received"]
        except _UNREADABLE:
            raise _damaged(path) from None
        if not sent.shape == received.shape == (round_, limits.machines):
            raise _damaged(path)
        return [RoundLoad(number, sent[number], received[number]) for number in range(round_)]

    def save(self, round_: int, loads: Sequence[RoundLoad]) -> None:
        """Say that the mail before a round is complete, and drop what was there before."""
        with replacing(self.folder / f"loads-{round_:05}.npz") as file:
            np.savez(file, sent=[load.sent for load in loads], received=[load.received for load in loads])
        write_json({"round": round_, "whose": self.whose}, self.folder / "run.json")
        for path in self.folder.glob("round-*"):
            if path != _round_folder(self.folder, round_):
                shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("loads-*.npz"):
            if path.name != f"loads-{round_:05}.npz":
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete everything: the run has ended. First what says that there is something to go on from."""
        for path in (self.folder / "run.json", *self.folder.glob("loads-*.npz")):
            path.unlink(missing_ok=True)
        for path in self.folder.glob("round-*"):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            self.folder.rmdir()


def _damaged(path: Path) -> InputError:
    given = f"{path}, damaged or missing"
    return InputError("checkpoints", given=given, expected="what a run saved", hint=_ANEW)


def _round_folder(folder: Path, round_: int) -> Path:
    return folder / f"round-{round_:05}"

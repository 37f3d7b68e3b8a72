"""The data of each part of the report, against independent recomputation."""

import base64
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from annattn.compiler import to_transformer
from annattn.experiments.checkpoints import trained
from annattn.lsh import Hyperplane
from annattn.mpc import Mail
from annattn.mpc.protocols import KHop
from annattn.nn import AnnaConfig, ExpectedCollisionConfig, SoftmaxConfig
from annattn.report import attention, models, theorems, theory
from annattn.report.results import PARTS
from annattn.theorems import THEOREMS
from annattn.theorems.verdict import Verdict, at_most


class TestAttention:
    def test_weights_are_the_definitions_of_the_three_mechanisms(self):
        generator = torch.Generator().manual_seed(5)
        query, key = (torch.randn(1, 1, 9, 8, generator=generator) for _ in range(2))
        q, k = query[0, 0].double().numpy(), key[0, 0].double().numpy()
        cosine = (q / np.linalg.norm(q, axis=1, keepdims=True)) @ (k / np.linalg.norm(k, axis=1, keepdims=True)).T
        seed = int(np.random.SeedSequence([7, 1]).generate_state(1, np.uint32)[0])
        hasher = Hyperplane(8).sample(tables=5, hashes=3, seed=seed)
        asked, held = hasher(query)[0, 0].tolist(), hasher(key)[0, 0].tolist()
        pairs = {
            SoftmaxConfig(3.0): np.exp(3 * cosine),
            ExpectedCollisionConfig("hyperplane", 3): (1 - np.arccos(cosine) / math.pi) ** 3,
            AnnaConfig("hyperplane", 5, 3): np.array(
                [[sum(a == b for a, b in zip(one, other, strict=True)) for other in held] for one in asked], float
            ),
        }
        assert (np.tril(pairs[AnnaConfig("hyperplane", 5, 3)]).sum(1) == 0).any()  # some query meets no key
        for mechanism, pair in pairs.items():
            causal = np.tril(pair)
            expected = causal / np.maximum(causal.sum(1, keepdims=True), 1e-300)
            found = attention.weights_of(mechanism, query, key, layer=1, seed=7)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)

    def test_pictures_are_of_the_weights_the_model_runs_with(self, results):
        part, model = results["attention"], trained(attention.MODEL)
        n = len(part["input"])
        task: Any = models.task_of(attention.MODEL)
        word = task.sample(1, (part["seed"], 4), split="test")
        inputs = torch.from_numpy(word.inputs)[:, :n]
        assert "".join(part["target"]) == task.decode(task.solve(word.inputs[0]))[:n].replace(".", "·")
        assert "".join(part["input"]) == task.decode(word.inputs[0])[:n]
        for number, layer in enumerate(part["layers"]):
            z, t = len(layer["hashes"]) - 1, 2
            other = models.with_layer(model, number, layer["tables"][t], layer["hashes"][z]).draw(part["seed"])
            cell = layer["rows"][z]["cells"][t]
            said = other(inputs).argmax(-1)[0].tolist()
            assert "".join(cell["said"]) == task.decode(said).replace(".", "·")
            bytes_ = np.frombuffer(base64.b64decode(cell["weights"]), np.uint8)
            assert len(bytes_) == n * (n + 1) // 2
            seen = {}
            block: Any = other.blocks[number]

            def spy(q, k, v, causal, mask, attend=block.attend, seen=seen):
                seen["out"] = attend(q, k, v, causal, mask)
                seen["value"] = v
                return seen["out"]

            block.attend = spy
            other(inputs)
            weights = np.zeros((n, n))
            weights[np.tril_indices(n)] = bytes_ / 255
            # What the mechanism reads is these weights times the values it is given.
            head = layer["head"]
            value = seen["value"][0, head].detach().double().numpy()
            read, found = weights @ value, seen["out"][0, head].detach().double().numpy()
            # A byte is off by at most half of 1/255, and a weight of 0 not at all.
            off = (weights > 0) @ np.linalg.norm(value, axis=1) * 0.5 / 255
            assert (np.linalg.norm(found - read, axis=1) <= off + 1e-5).all()
            assert np.linalg.norm(found, axis=1).max() > 3 * off.max()

    def test_queries_and_keys_are_those_of_the_layer(self):
        model = trained(attention.MODEL)
        tokens = torch.tensor([[7, 2, 3, 4, 2]])
        query, key = attention.queries_and_keys(model, tokens, 0)
        block: Any = model.blocks[0]
        split = block.query_key_value(block.attention_norm(model.tokens(tokens))).detach()
        dim = model.config.dim
        # Turning by positions keeps lengths, and leaves position 0 alone.
        torch.testing.assert_close(query[0, :, 0].flatten(), split[0, 0, :dim])
        torch.testing.assert_close(key[0].norm(dim=(0, -1)), split[0, :, dim : 2 * dim].norm(dim=-1))
        assert block.attend.__name__ != "record"

    def test_distance_counts_a_query_that_met_nobody_as_far(self):
        expected = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        assert attention._distance(expected, expected) == 0
        assert attention._distance(torch.zeros(2, 2), expected) == 1
        assert attention._distance(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), expected) == 0.5


class TestModels:
    def test_a_cell_is_the_share_of_wrong_tokens_counted_one_by_one(self, results):
        part = results["models"]
        model = trained("induction_direct")
        layer, t, z = 1, 1, 0
        swept = part["models"][1]["layers"][layer]
        task = models.task_of("induction_direct")
        held_out = task.sample(part["samples"], (part["seed"], 2), split="test")
        other = models.with_layer(model, layer, swept["tables"][t], swept["hashes"][z])
        shares = []
        for draw in range(part["draws"]):
            other.draw(int(np.random.SeedSequence([part["seed"], 3, draw]).generate_state(1)[0]))
            said = other(torch.from_numpy(held_out.inputs)).argmax(-1).tolist()
            truth = task.solve(held_out.inputs).tolist()
            pairs = [(a, b) for one, two in zip(said, truth, strict=True) for a, b in zip(one, two, strict=True)]
            shares.append(sum(a != b for a, b in pairs) / len(pairs))
        cell = swept["errors"][z][t]
        assert cell["mean"] == pytest.approx(sum(shares) / len(shares), abs=1e-12)
        assert cell["spread"] == pytest.approx(float(np.std(shares)), abs=1e-12)

    def test_what_a_layer_was_trained_with_is_tried_too(self, results):
        for model in results["models"]["models"]:
            whole = trained(model["name"])
            layers = [models.hashing_of(whole, layer) for layer in range(whole.config.layers)]
            used = [(one.tables, one.hashes) for one in layers]
            assert [(one["trained"]["tables"], one["trained"]["hashes"]) for one in model["layers"]] == used
            for layer in model["layers"]:
                assert layer["trained"]["tables"] in layer["tables"]
                assert layer["trained"]["hashes"] in layer["hashes"]
                at = layer["errors"][layer["hashes"].index(layer["trained"]["hashes"])]
                assert at[layer["tables"].index(layer["trained"]["tables"])] == model["trained"]


class TestTheory:
    def test_words_sent_received_and_held_are_the_sums_of_what_flows(self, results):
        part = results["theory"]
        assert part["equal"] == part["compared"] == 2
        before = None
        for one in part["rounds"]:
            flows = np.array(one["flows"])
            assert flows.sum(1).tolist() == one["sent"]
            assert flows.sum(0).tolist() == one["received"]
            assert max(one["received"]) <= part["memory_words"]
            assert one["held"] == before or before is None
            assert one["same"]
            before = one["received"]
        assert sum(part["rounds"][0]["held"]) == part["n"]
        assert part["sizes"]["layers"] == len(part["rounds"]) + 1
        assert sum(sum(one["sent"]) for one in part["rounds"]) == part["words_moved"]

    @pytest.mark.slow
    def test_heads_attend_to_those_who_send(self, results):
        """The page says that the picture of who sends to whom is what a layer's heads attend to."""
        part = results["theory"]
        protocol = KHop(part["n"], part["memory_words"], k=part["k"])
        word = np.random.default_rng(part["seed"]).integers(0, 4, part["n"], dtype=np.uint64)
        model = to_transformer(protocol, "ema", example=word)
        steps = model.trace(model.embed(word), tokens=range(part["machines"])).steps
        for number, one in enumerate(part["rounds"], 1):
            met = np.zeros((part["machines"],) * 2, bool)
            for step in steps:
                if step.layer == number:
                    equal = (step.query[:, None] == step.key[None]).all(-1) & (step.value != 0).any(-1)[None]
                    met |= equal.numpy()
            assert ((np.array(one["flows"]) > 0) == met.T).all(), number

    def test_other_messages_are_noticed(self):
        mail = Mail([0, 1, 1], [0, 0, 1], [[7, 1], [8, 2], [9, 3]])
        assert theory.same_mail(mail, mail.take(np.array([2, 0, 1])))
        for other in ([[7, 1], [8, 2], [9, 4]], [[8, 1], [7, 2], [9, 3]]):
            assert not theory.same_mail(mail, Mail(mail.dest, mail.src, other))
        assert not theory.same_mail(mail, mail.take(np.array([0, 1])))

    @pytest.mark.slow
    def test_a_wrong_transformer_is_noticed(self, monkeypatch):
        def broken(*args, **kwargs):
            model = to_transformer(*args, **kwargs)
            first_found = torch.zeros(model.rows.width)
            first_found[8] = 1  # after token, sizes and sender, the halves of place, jump and found letter
            return replace(model, output=lambda rows: rows + first_found[: rows.shape[1]])

        monkeypatch.setattr(theory, "to_transformer", broken)
        found = theory.k_hop(n=27, k=2, memory_words=18, words=1)
        assert found["equal"] == 0


class TestTheorems:
    def test_rows_are_the_verdicts(self, results):
        for row in results["theorems"]["rows"]:
            verdict = THEOREMS[row["name"]]("tiny")
            assert (row["theorem"], row["equal"], row["inputs"]) == (verdict.theorem, verdict.equal, verdict.inputs)
            assert row["holds"]
            assert row["kept"] == len(verdict.bounds) + len(verdict.exponents)

    def test_a_broken_bound_is_told(self, monkeypatch):
        bounds = (at_most("heads", 5, 4, "4", "N = 8"), at_most("heads", 3, 4, "4", "N = 9"))
        verdict = Verdict("Theorem", "a thing", (8,), bounds, (), 1, 1, 0.1)
        monkeypatch.setitem(THEOREMS, "match2", lambda effort, progress: verdict)
        (row,) = theorems.rows(names=["match2"])["rows"]
        assert not row["holds"]
        assert row["kept"] == 1
        assert row["broken"] == row["bounds"] == [str(bounds[0])]


@pytest.mark.slow
def test_every_part_tells_how_far_it_is():
    told = []
    models.errors(samples=1, draws=1, progress=lambda done, what: told.append(done))
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] <= 1
    assert set(PARTS) == {"speed", "attention", "models", "recall", "needles", "theory", "theorems"}

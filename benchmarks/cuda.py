"""`python -m benchmarks --device cuda`: every prediction of the cost model beside what CUDA events measure."""

import torch
from rich.console import Console
from rich.table import Table

import annattn as aa
from annattn.kernels import use_backend
from annattn.measure.gpu import GPUS, attention_costs, predicted_seconds, softmax_seconds
from benchmarks.contenders import DIM, check_anna, hyperplanes, tokens

SIZES = (4096, 16_384, 65_536, 262_144, 1_048_576)
NO_GPU = "there is no CUDA here: torch sees no GPU, so nothing was measured"


def seconds_of(call, repeat: int = 10) -> float:
    """The median time of a call between two events on the GPU's own clock, after two calls to warm up."""
    for _ in range(2):
        call()
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeat // 2]


def compare(console: Console) -> int:
    """Print predicted beside measured, or one line if there is no GPU; returns the exit code."""
    if not torch.cuda.is_available():
        console.print(NO_GPU)
        return 1
    name = torch.cuda.get_device_name()
    gpu = GPUS["H100" if "H100" in name else "A100"]
    table = Table("call", "tokens", "predicted ms", "measured ms", title=f"{name}; one head, dim {DIM}, 8 tables of 8")
    hasher = hyperplanes()
    there = hasher.to("cuda")
    for n in SIZES:
        query, key, value = tokens(n)
        on_gpu = query.cuda(), key.cuda(), value.cuda()
        for is_causal in (False, True):

            def attend(inputs=on_gpu, is_causal=is_causal):
                q, k, v = inputs
                with use_backend("triton"):
                    return aa.anna_attention(q, k, v, there, is_causal=is_causal)

            # A wrong answer is not worth timing.
            check_anna(query, key, value, hasher, attend().cpu(), is_causal=is_causal)
            predicted = predicted_seconds(attention_costs(n, is_causal=is_causal), gpu)
            label = "ANNA, causal" if is_causal else "ANNA"
            table.add_row(label, f"{n:,}", f"{1e3 * predicted:.3f}", f"{1e3 * seconds_of(attend):.3f}")
        half = tuple(x.bfloat16() for x in on_gpu)
        predicted = softmax_seconds(n, gpu)
        measured = seconds_of(lambda half=half: torch.nn.functional.scaled_dot_product_attention(*half), repeat=3)
        table.add_row("torch softmax, bfloat16", f"{n:,}", f"{1e3 * predicted:.3f}", f"{1e3 * measured:.3f}")
    console.print(table)
    return 0

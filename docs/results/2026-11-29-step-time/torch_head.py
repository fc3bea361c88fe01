"""The MTP head of the embedded model in PyTorch: time of a training step, as a yardstick for `foretoken train`.

Same sizes, same unrolling over K positions with the head's own hidden row fed back, KL to a teacher whose
distribution is recomputed from hidden rows, AdamW, gradient clipped. Left out, in PyTorch's favour: a depth's own
draft keys in the attention of later depths, and the second loss on the hidden row. Data and weights are random.

usage: python3 torch_head.py [N] [K] [THREADS] [STEPS]

CPU time says what a step costs also on a machine that does other things.
"""
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F

N, K, THREADS, STEPS = (int(x) for x in (sys.argv[1:] + ["512", "3", "2", "12"][len(sys.argv) - 1 :]))
D, HEADS, KV_HEADS, HEAD_DIM, ROT, EXPERTS, USED, FF, VOCAB = 256, 4, 2, 64, 16, 8, 2, 256, 4096
torch.manual_seed(0)
torch.set_num_threads(THREADS)

weights = {}


def weight(name, *shape):
    weights[name] = (torch.ones(*shape) if len(shape) == 1 else torch.randn(*shape) * 0.05).requires_grad_()


for name in ("hnorm", "enorm", "attn_norm", "post_norm", "head_norm"):
    weight(name, D)
weight("q_norm", HEAD_DIM)
weight("k_norm", HEAD_DIM)
for name, shape in {
    "fc": (D, 2 * D), "q": (HEADS * HEAD_DIM, D), "gate": (HEADS * HEAD_DIM, D), "k": (KV_HEADS * HEAD_DIM, D),
    "v": (KV_HEADS * HEAD_DIM, D), "o": (D, HEADS * HEAD_DIM), "router": (EXPERTS, D), "shared_gate": (FF, D),
    "shared_up": (FF, D), "shared_down": (D, FF), "shared_in": (1, D), "exp_gate": (EXPERTS, FF, D),
    "exp_up": (EXPERTS, FF, D), "exp_down": (EXPERTS, D, FF),
}.items():
    weight(name, *shape)
w = weights
lm_head = torch.randn(VOCAB, D) * 0.06
angles = torch.arange(N)[:, None] * 1e5 ** (-torch.arange(0, ROT, 2) / ROT)
cos, sin = torch.cos(angles)[None], torch.sin(angles)[None]
mask = torch.full((N, N), -math.inf).triu(1)


def rms(x, scale):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale


def rope(x):
    a, b, rest = x[..., : ROT // 2], x[..., ROT // 2 : ROT], x[..., ROT:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def block(x):
    a = rms(x, w["attn_norm"])
    heads = lambda matrix, n: (a @ matrix.T).view(N, n, HEAD_DIM).transpose(0, 1)
    q = rope(rms(heads(w["q"], HEADS), w["q_norm"]))
    k = rope(rms(heads(w["k"], KV_HEADS), w["k_norm"])).repeat_interleave(HEADS // KV_HEADS, 0)
    v = heads(w["v"], KV_HEADS).repeat_interleave(HEADS // KV_HEADS, 0)
    out = (torch.softmax(q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM) + mask, -1) @ v).transpose(0, 1).reshape(N, -1)
    x = x + (out * torch.sigmoid(a @ w["gate"].T)) @ w["o"].T
    b = rms(x, w["post_norm"])
    probs, ids = torch.softmax(b @ w["router"].T, -1).topk(USED, -1)
    probs = probs / probs.sum(-1, keepdim=True)
    routed = torch.zeros_like(b)
    for e in range(EXPERTS):
        rows, place = (ids == e).nonzero(as_tuple=True)
        y = (F.silu(b[rows] @ w["exp_gate"][e].T) * (b[rows] @ w["exp_up"][e].T)) @ w["exp_down"][e].T
        routed = routed.index_add(0, rows, y * probs[rows, place, None])
    shared = (F.silu(b @ w["shared_gate"].T) * (b @ w["shared_up"].T)) @ w["shared_down"].T
    return x + routed + torch.sigmoid(b @ w["shared_in"].T) * shared


optimizer = torch.optim.AdamW(w.values(), lr=1e-3, weight_decay=0.01)
times, cpu_times = [], []
for _ in range(STEPS):
    hidden, teacher = torch.randn(N, D), torch.randn(N + K - 1, D)
    embeddings = [torch.randn(N, D) for _ in range(K)]
    start, cpu_start = time.perf_counter(), time.process_time()
    with torch.no_grad():
        q = torch.softmax(teacher @ lm_head.T, -1)
    loss = 0.0
    for j in range(K):
        hidden = rms(block(torch.cat([rms(embeddings[j], w["enorm"]), rms(hidden, w["hnorm"])], -1) @ w["fc"].T), w["head_norm"])
        loss = loss - 0.8**j * (q[j : j + N] * torch.log_softmax(hidden @ lm_head.T, -1)).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
    optimizer.step()
    times.append(1000 * (time.perf_counter() - start))
    cpu_times.append(1000 * (time.process_time() - cpu_start))
print(f"torch {torch.__version__} N={N} K={K} threads={THREADS}: CPU {statistics.median(cpu_times[1:]):.0f} ms, wall {statistics.median(times[1:]):.0f} ms, fastest {min(times):.0f} ms")

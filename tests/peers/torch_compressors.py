"""Compressors of the package with PyTorch's CPU tensors, as a user of PyTorch would write them.

Each is called with the gradient as views of its tensors and as a whole, and does what the package's encoder does: the
message (levels of 8 bits where PyTorch has no entropy code) and what is not sent, which stays in the gradient.
"""

import torch

SHIFTS = torch.arange(8, dtype=torch.uint8)
TWOS = torch.arange(0, 8, 2, dtype=torch.uint8)
SAMPLED = 0.01


def packed(codes, shifts):
    """Bytes of small numbers, the first lowest."""
    rest = -len(codes) % len(shifts)
    whole = torch.cat([codes, codes.new_zeros(rest)]) if rest else codes
    return (whole.view(-1, len(shifts)) << shifts).sum(1, dtype=torch.uint8)


def cast(dtype):
    def step(tensors, whole, state):
        sent = whole.to(dtype)
        state["residual"] = whole - sent
        whole.copy_(sent)
        return sent

    return step


def sign(tensors, whole, state):
    return packed((whole >= 0).to(torch.uint8), SHIFTS)


def ef_sign(tensors, whole, state):
    bits = packed((whole >= 0).to(torch.uint8), SHIFTS)
    for one in tensors:
        one.sub_(torch.where(one >= 0, 1.0, -1.0) * one.abs().mean())
    return bits


def one_bit(tensors, whole, state):
    bits = packed((whole >= 0).to(torch.uint8), SHIFTS)
    for one in tensors:
        rows = one.view(len(one), -1) if one.dim() > 1 else one.view(1, -1)
        positive = rows >= 0
        count = positive.sum(1, keepdim=True)
        above = (rows * positive).sum(1, keepdim=True) / count.clamp(min=1)
        below = (rows * ~positive).sum(1, keepdim=True) / (rows.shape[1] - count).clamp(min=1)
        rows.sub_(torch.where(positive, above, below))
    return bits


def terngrad(tensors, whole, state):
    codes = []
    for one in tensors:
        limit = 2.5 * one.square().mean().sqrt()
        one.clamp_(-limit, limit)
        scale = one.abs().max()
        kept = (torch.rand_like(one) * scale < one.abs()).to(torch.uint8)
        codes.append((kept + (kept & (one < 0))).view(-1))
    return packed(torch.cat(codes), TWOS)


def qsgd(tensors, whole, state):
    buckets = whole[: len(whole) // 512 * 512].view(-1, 512)
    norms = buckets.norm(dim=1, keepdim=True)
    levels = (buckets.abs() / norms * 16 + torch.rand_like(buckets)).floor_()
    return norms, (levels * buckets.sign()).to(torch.int8)


def words(positions, values):
    return (positions.to(torch.int32) << 1) | (values < 0).to(torch.int32)


def threshold(tensors, whole, state):
    sampled = whole[torch.randint(len(whole), (int(SAMPLED * len(whole)),))].abs()
    tau = torch.topk(sampled, max(1, int(0.001 * len(sampled)))).values[-1]
    positions = (whole.abs() > tau).nonzero().view(-1)
    values = whole[positions].sign() * tau
    whole[positions] -= values
    return words(positions, values)


def top_k(tensors, whole, state):
    positions = torch.topk(whole.abs(), int(0.001 * len(whole)), sorted=False).indices
    values = whole[positions]
    whole[positions] = 0
    return positions.to(torch.int32), values


def random_k(tensors, whole, state):
    positions = torch.randperm(len(whole))[: int(0.01 * len(whole))]
    values = whole[positions]
    state["residual"] = whole.clone()
    state["residual"][positions] = 0
    whole.zero_()
    whole[positions] = values
    return values


def dgc(tensors, whole, state):
    if not state:
        state.update(u=torch.zeros_like(whole), v=torch.zeros_like(whole))
    u, v = state["u"], state["v"]
    u.mul_(0.9).add_(whole)
    v.add_(u)
    sampled = v[torch.randint(len(v), (int(SAMPLED * len(v)),))].abs()
    least = torch.topk(sampled, max(1, int(0.001 * len(sampled)))).values[-1]
    positions = (v.abs() >= least).nonzero().view(-1)
    values = v[positions]
    u[positions] = 0
    v[positions] = 0
    return positions.to(torch.int32), values


def power_sgd(tensors, whole, state):
    for number, one in enumerate(tensors):
        if one.dim() < 2:
            continue
        matrix = one.view(len(one), -1)
        q = state.setdefault(number, torch.randn(matrix.shape[1], 2))
        p = torch.linalg.qr(matrix @ torch.linalg.qr(q).Q).Q
        state[number] = matrix.T @ p
        matrix.sub_(p @ state[number].T)


OTHERS = (sign, ef_sign, one_bit, terngrad, qsgd, threshold, top_k, random_k, dgc, power_sgd)
COMPRESSORS = {"fp16": cast(torch.float16), "bf16": cast(torch.bfloat16), **{one.__name__: one for one in OTHERS}}


def peer(name, shapes):
    """A function that compresses a gradient in the memory of a numpy array; None without a peer."""
    if name not in COMPRESSORS:
        return None
    torch.set_num_threads(1)
    state = {}

    def encode(memory):
        whole = torch.from_numpy(memory)
        pieces = whole.split([int(torch.Size(shape).numel()) for shape in shapes])
        tensors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        COMPRESSORS[name](tensors, whole, state)

    return encode

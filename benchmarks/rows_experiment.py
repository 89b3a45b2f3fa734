"""Times single passes of a selection over long rows, in several forms, on a GPU. Temporary.

    python -m benchmarks.rows_experiment [--compile-only]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ATOM = tl.constexpr("""{
.reg .pred p;
mov.u32 $0, -1;
setp.ge.f32 p, $1, $2;
setp.lt.and.f32 p, $1, $3, p;
@p atom.global.relaxed.cta.add.u32 $0, [$4], 1;
}""")
PUT = tl.constexpr("""{
.reg .pred p; .reg .u64 a;
setp.lt.u32 p, $1, $4;
mad.wide.u32 a, $1, 4, $3;
@p st.global.f32 [a], $2;
mov.u32 $0, 0;
}""")
# a store to a place of its own for each lane of a row: the place is carried from piece to piece
APPEND = tl.constexpr("""{
.reg .pred p; .reg .pred q; .reg .u64 a;
setp.ge.f32 p, $2, $3;
setp.lt.and.f32 p, $2, $4, p;
setp.lt.and.u32 q, $1, $6, p;
mad.wide.u32 a, $1, 4, $5;
@q st.global.f32 [a], $2;
mov.u32 $0, $1;
@p add.u32 $0, $1, 1;
}""")


@triton.jit
def _tile(g, v_ptr, first, vk, N: tl.constexpr, D: tl.constexpr):
    keys = first + tl.arange(0, N)
    d = tl.arange(0, D)
    v = tl.load(v_ptr + keys[:, None] * vk + d[None, :])
    return tl.dot(g, tl.trans(v), input_precision="ieee")


@triton.jit
def _append(y, place, low, high, buffer):
    return tl.inline_asm_elementwise(
        APPEND, "=r,r,f,f,f,l,r", [place, y, low[:, None], high[:, None], buffer, 48], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _append16(y, place, low, high, buffer, M: tl.constexpr):
    """y: [M, 4, 16]"""
    a, b = tl.split(tl.reshape(y, [M, 4, 8, 2]))
    for half in tl.static_range(2):
        e = a if half == 0 else b
        c, d = tl.split(tl.reshape(e, [M, 4, 4, 2]))
        for quarter in tl.static_range(2):
            f = c if quarter == 0 else d
            g, h = tl.split(tl.reshape(f, [M, 4, 2, 2]))
            g0, g1 = tl.split(g)
            h0, h1 = tl.split(h)
            place = _append(g0, place, low, high, buffer)
            place = _append(g1, place, low, high, buffer)
            place = _append(h0, place, low, high, buffer)
            place = _append(h1, place, low, high, buffer)
    return place


@triton.jit
def pass_kernel(
    g_ptr, v_ptr, piv_ptr, ctr_ptr, buf_ptr, out_ptr, words_ptr, K, gq, vk, limit, hi16, hi17,
    KIND: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):
    head = tl.program_id(1)
    rows = head * K + tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    g = tl.load(g_ptr + rows[:, None] * gq + d[None, :])
    v_ptr += head * K * vk
    low = tl.load(piv_ptr + rows * 4)
    high = tl.load(piv_ptr + rows * 4 + 1)
    a = tl.zeros([M], tl.float32)
    b = tl.zeros([M], tl.float32)
    c = tl.zeros([M], tl.float32)
    e = tl.zeros([M], tl.float32)
    ctr = ctr_ptr + rows
    buf = buf_ptr + rows.to(tl.int64) * 192
    lanes = buf_ptr.to(tl.int64) + rows.to(tl.int64)[:, None] * 768 + (tl.arange(0, 4) * 192)[None, :]
    place = tl.zeros([M, 4], tl.int32)
    words = rows.to(tl.uint32) * 0x9E3779B9
    limit = limit.to(tl.uint32)
    W = K // 16
    for tile in range(K // N):
        x = _tile(g, v_ptr, tile * N, vk, N, D)
        if KIND == "int":
            a += tl.sum(tl.where(x < low[:, None], 1, 0), 1).to(tl.float32)
        if KIND == "count" or KIND == "atomic" or KIND == "asm" or KIND == "lanes":
            a += tl.sum(tl.where(x < low[:, None], 1.0, 0.0), 1)
        if KIND == "count":
            if P > 1:
                b += tl.sum(tl.where(x < high[:, None], 1.0, 0.0), 1)
            if P > 2:
                c += tl.sum(tl.where(x < (low + 0.1)[:, None], 1.0, 0.0), 1)
            if P > 3:
                e += tl.sum(tl.where(x < (high + 0.1)[:, None], 1.0, 0.0), 1)
        if KIND == "largest":
            b = tl.maximum(b, tl.max(tl.where(x < high[:, None], x, float("-inf")), 1))
        if KIND == "moments":
            a += tl.sum(x, 1)
            b += tl.sum(x * x, 1)
        if KIND == "atomic":
            inside = (x >= low[:, None]) & (x < high[:, None])
            slot = tl.atomic_add(ctr[:, None] + tl.zeros([M, N], tl.int32), 1, mask=inside, sem="relaxed", scope="cta")
            tl.store(buf[:, None] + slot, x, mask=inside & (slot < 192))
        if KIND == "asm":
            slot = tl.inline_asm_elementwise(
                ATOM, "=r,f,f,f,l", [x, low[:, None], high[:, None], ctr.to(tl.int64)[:, None]], tl.int32,
                is_pure=False, pack=1,
            )
            tl.inline_asm_elementwise(
                PUT, "=r,r,f,l,r", [slot, x, buf.to(tl.int64)[:, None], 192], tl.int32, is_pure=False, pack=1
            )
        if KIND == "lanes":
            y = tl.reshape(x, [M, N // 8, 4, 2])
            y = tl.reshape(tl.permute(y, [0, 2, 1, 3]), [M, 4, N // 4])
            if N == 64:
                place = _append16(y, place, low, high, lanes, M)
            else:
                y0, y1 = tl.split(tl.reshape(y, [M, 4, 16, 2]))
                place = _append16(y0, place, low, high, lanes, M)
                place = _append16(y1, place, low, high, lanes, M)
        if KIND == "write" or KIND == "fma" or KIND == "mul" or KIND == "plainbits":
            keys = tile * N + tl.arange(0, N)
            offsets = tl.arange(0, N)
            bit = (1 << (offsets % 64 // 8 * 2 + offsets % 2)).to(tl.float32)[None, :]
            if KIND == "plainbits":
                bits = tl.where(x >= low[:, None], bit, 0.0)
            else:
                w = words[:, None] + keys.to(tl.uint32)[None, :] * 0x9E3779B9
                if KIND == "mul":
                    w ^= tl.umulhi(w, hi16.to(tl.uint32))
                    w *= 0x7FEB352D
                    w ^= tl.umulhi(w, hi17.to(tl.uint32))
                else:
                    w ^= w >> 16
                    w *= 0x7FEB352D
                    w ^= w >> 15
                w *= 0x846CA68B
                drawn = (w ^ (limit >> 16)) <= limit
                if KIND == "write":
                    bits = tl.where(~(drawn & (x >= low[:, None])), bit, 0.0)
                else:
                    bits = tl.where(drawn, bit, 0.0) * tl.where(x >= low[:, None], 1.0, 0.0)
            bits = tl.reshape(bits, [M, N // 64, 8, 4, 2])
            packed = tl.reshape(tl.sum(tl.sum(bits, 4), 2), [M, N // 16]).to(tl.int32)
            if KIND != "write":
                packed = ~packed
            at = tile * (N // 16) + tl.arange(0, N // 16)
            tl.store(words_ptr + rows[:, None] * W + at[None, :], packed.to(tl.int16))
    tl.store(out_ptr + rows, a + b + c + e + tl.sum(place, 1).to(tl.float32))


TYPES = {"g_ptr": "*bf16", "v_ptr": "*bf16", "ctr_ptr": "*i32", "words_ptr": "*i16"}
# kind, pivots, M, N, warps, stages, registers
VARIANTS = [
    ("int", 1, 128, 128, 8, 2, 128),
    ("count", 1, 128, 128, 8, 2, 128),
    ("count", 2, 128, 128, 8, 2, 128),
    ("count", 2, 128, 128, 8, 3, 128),
    ("count", 2, 64, 128, 4, 2, 128),
    ("count", 2, 64, 128, 4, 3, 128),
    ("count", 2, 128, 64, 8, 3, 128),
    ("count", 2, 128, 64, 8, 3, 80),
    ("count", 2, 64, 64, 4, 3, 80),
    ("count", 2, 128, 256, 8, 2, 255),
    ("count", 2, 128, 256, 8, 3, 255),
    ("count", 3, 128, 128, 8, 2, 128),
    ("count", 4, 128, 128, 8, 2, 128),
    ("largest", 1, 128, 128, 8, 2, 128),
    ("moments", 1, 128, 128, 8, 2, 128),
    ("atomic", 1, 128, 64, 8, 2, 128),
    ("atomic", 1, 128, 32, 8, 2, 128),
    ("asm", 1, 128, 64, 8, 2, 128),
    ("asm", 1, 128, 32, 8, 2, 80),
    ("asm", 1, 64, 64, 4, 2, 128),
    ("lanes", 1, 128, 64, 8, 2, 128),
    ("lanes", 1, 128, 128, 8, 2, 128),
    ("lanes", 1, 64, 64, 4, 2, 80),
    ("write", 1, 128, 128, 8, 2, 128),
    ("write", 1, 64, 128, 4, 2, 128),
    ("write", 1, 64, 128, 4, 3, 128),
    ("write", 1, 128, 64, 8, 3, 80),
    ("write", 1, 64, 64, 4, 3, 80),
    ("fma", 1, 128, 128, 8, 2, 128),
    ("fma", 1, 64, 64, 4, 3, 80),
    ("mul", 1, 128, 128, 8, 2, 128),
    ("mul", 1, 64, 64, 4, 3, 80),
    ("plainbits", 1, 128, 128, 8, 2, 128),
]


def compiled(variant):
    kind, pivots, m, n, warps, stages, registers = variant
    constants = {"KIND": kind, "P": pivots, "M": m, "N": n, "D": 64}
    signature, attributes = {}, {}
    for i, parameter in enumerate(pass_kernel.params):
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = TYPES.get(name, "*fp32")
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif name == "limit":
            signature[name] = "i64"
        else:
            signature[name] = "i32"
            if name in ("K", "gq", "vk"):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(pass_kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def compile_quietly(variant):
    try:
        compiled(variant)
    except Exception as error:
        return f"{variant}: {type(error).__name__}: {str(error)[-300:]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for message in pool.map(compile_quietly, VARIANTS):
            if message:
                print(message)
    if options.compile_only:
        return
    lines = []
    for batch, keys in ((4, 2048), (1, 8192)):
        heads = 12 * batch
        torch.manual_seed(0)
        g, v = (torch.randn(heads * keys, 64, device="cuda").bfloat16() for _ in range(2))
        norm = g.float().norm(dim=1)
        middle, half = norm * 0.524, norm * 40 / keys / 0.348
        pivots = torch.stack([middle - half, middle + half, middle, middle], 1).contiguous()
        counter = torch.zeros(heads * keys, dtype=torch.int32, device="cuda")
        buffer = torch.zeros(heads * keys * 192, device="cuda")
        out = torch.zeros(heads * keys, device="cuda")
        words = torch.zeros(heads * keys * (keys // 16), dtype=torch.int16, device="cuda")
        for variant in VARIANTS:
            kind, p, m, n, warps, stages, registers = variant
            try:
                kernel = compiled(variant)
                arguments = (
                    g, v, pivots, counter, buffer, out, words, keys, 64, 64, int(0.3 * 2**32), 2**16, 2**17,
                    kind, p, m, n, 64,
                )
                grid = (keys // m, heads, 1)
                for _ in range(2):
                    kernel[grid](*arguments)
                torch.cuda.synchronize()
                times = []
                for _ in range(7):
                    counter.zero_()
                    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    torch.cuda._sleep(300_000)
                    before.record()
                    kernel[grid](*arguments)
                    after.record()
                    torch.cuda.synchronize()
                    times.append(before.elapsed_time(after) * 1e3)
                line = f"{batch}x{keys} {variant}: {statistics.median(times):.1f} us; mean of out {out.mean().item():.1f}"
                line += f"; counter {counter.float().mean().item():.1f}; registers {kernel.n_regs}, spills {kernel.n_spills}"
            except Exception as error:
                line = f"{batch}x{keys} {variant}: {type(error).__name__} {str(error)[:200]}"
            print(line, flush=True)
            lines.append(line)
    if "OUT" in os.environ:
        with open(os.path.join(os.environ["OUT"], "rows_experiment.txt"), "w") as file:
            file.write("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())

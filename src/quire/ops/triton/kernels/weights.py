"""What the products read of a weight: its codes, and what they mean."""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import prefetch


@triton.jit
def load_codes(
    w, row, k, stride, halves: tl.constexpr, even: tl.constexpr, block_k: tl.constexpr
):  # fmt: skip
    """Return what a weight stores of rows `row`, from column `k` on: [block_n, block_k (/ 2)].

    stride: elements of a row.
    halves: a byte has the codes of two columns; block_k is 128.
    even: all the columns are there.
    """
    at = tl.arange(0, block_k)
    if halves:
        at = tl.arange(0, block_k // 2)
        k = k // 2
    where = row[:, None] * stride + k + at[None, :]
    whole: tl.constexpr = even or halves
    return tl.load(w + where) if whole else tl.load(w + where, (k + at < stride)[None, :], 0.0)


@triton.jit
def load_first_codes(
    w, row, k, stride, early: tl.constexpr, halves: tl.constexpr, even: tl.constexpr,
    block_k: tl.constexpr,
):  # fmt: skip
    """Return the first `early` tiles of codes."""
    found = ()
    for i in tl.static_range(early):
        tile = load_codes(w, row, k + i * block_k, stride, halves, even, block_k)
        found = found + (tile,)  # noqa: RUF005
    return found


@triton.jit
def prefetch_codes(w, row, k, stride, lines: tl.constexpr, halves: tl.constexpr):
    """Have the cache read `lines` lines of 128 bytes of each row, from column `k` on."""
    elements: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth
    at = (k // 2 if halves else k) + tl.arange(0, lines) * elements
    prefetch(w + row[:, None] * stride + tl.minimum(at, stride - 1)[None, :])


@triton.jit
def by_group(
    numbers, row, k, groups, height, group: tl.constexpr, block_k: tl.constexpr,
    block_n: tl.constexpr,
):  # fmt: skip
    """Return the numbers of the groups of `block_k` columns, as float32 [block_n, block_k or 1].

    numbers: [groups, height]; those of neighbouring rows lie together, so that they can be loaded
        long before their use.
    group: columns of a group; 0 if a row is one.
    """
    place = numbers + row[:, None]
    if group == 0:
        found = tl.load(place).to(tl.float32)
    elif group % block_k == 0:
        found = tl.load(place + tl.minimum(k // group, groups - 1) * height).to(tl.float32)
    elif block_k % group == 0:
        at = tl.minimum(k // group + tl.arange(0, block_k // group), groups - 1)
        few = tl.load(place + at[None, :] * height).to(tl.float32)
        wide = tl.broadcast_to(few[:, :, None], (block_n, block_k // group, group))
        found = wide.reshape(block_n, block_k)
    else:
        at = tl.minimum((k + tl.arange(0, block_k)) // group, groups - 1)
        found = tl.load(place + at[None, :] * height).to(tl.float32)
    return found


@triton.jit
def as_float(codes, less):
    """Return codes − less as float32; of unsigned bytes by their place in a float's fraction.

    Conversions of integers run at an eighth of the speed of sums. `less` must be an integer.
    """
    if codes.dtype == tl.uint8:
        wide = (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + less)
    else:
        wide = codes.to(tl.float32) - less
    return wide


@triton.jit
def e2m1_values(codes):
    """Return what 4-bit floats mean: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.

    Their three bits are the lowest of a float's exponent and the first of its fraction: 2^126 times
    too small.
    """
    wide = codes.to(tl.int32)
    bits = ((wide & 7) << 22) | ((wide & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


PAIRS = {
    tl.bfloat16: ("bf16x2", 0x43434343, 0x3F803F80, 6, 0x7E807E80),
    tl.float16: ("f16x2", 0x64646464, 0x3C003C00, 9, 0x74007400),
}
"""Type → its PTX name in pairs; the high bytes of 2^7 or 2^10, whose last bit is worth 1; 1.0;
where the fraction of a 4-bit float goes; how much too small that is (see `e2m1_values`)."""


@triton.constexpr_function
def pair_asm(compute: tl.dtype, part: int, split: bool, floats: bool) -> str:
    """Return PTX that makes numbers times a scale of the low or high half of four bytes.

    $0, $1: the results in pairs. $2: the bytes. $3, $4: the scale. $5, $6: what it lacks, if it is
    `split`. The last two, unless the codes are floats (e2m1): −(zero + 2^7 or 2^10).

    A code below the bytes of 2^7 is 2^7 + code. All but the last operation are exact.
    """
    kind, high, one, place, small = PAIRS[compute]
    shift = "shr.b32 a, $2, 4; and.b32 a, a, 0x0F0F0F0F;"
    factor, above = (small, 0) if floats else (one, high)
    lines = [
        ".reg .b32 a, b, c, d, by, none;",
        f"mov.b32 by, {factor:#x}; mov.b32 none, 0x80008000;",  # -0.0, which changes no sum
        shift if part else "and.b32 a, $2, 0x0F0F0F0F;",
    ]
    for i, selector in enumerate(("0x4140", "0x4342")):
        rest, added = "none", "none" if floats else f"${(7 if split else 5) + i}"
        lines.append(f"prmt.b32 b, a, {above:#x}, {selector};")
        if floats:
            mask = 7 << place
            lines.append(f"shl.b32 c, b, {place}; and.b32 c, c, {mask << 16 | mask:#x};")
            lines.append("shl.b32 b, b, 12; and.b32 b, b, 0x80008000; or.b32 b, b, c;")
        lines.append(f"fma.rn.{kind} b, b, by, {added};")
        if split:
            lines.append(f"fma.rn.{kind} d, b, ${5 + i}, none;")
            rest = "d"
        lines.append(f"fma.rn.{kind} ${i}, b, ${3 + i}, {rest};")
    return "{ " + " ".join(lines) + " }"


@triton.jit
def paired(codes, less, scale, part: tl.constexpr, split: tl.constexpr, compute: tl.constexpr):
    """Return numbers · scale of one half of bytes, two at a time: with the bits of float32.

    less: integers up to 16, of which codes are that much more; None if codes are e2m1.
    scale: of 16 bits; `split` if `compute` has fewer. Both are float32 [block_n, 1 or columns].
    """
    near = scale.to(compute)
    given = [codes, near]
    if split:
        given = [codes, near, (scale - near.to(tl.float32)).to(compute)]
    if less is not None:
        bias: tl.constexpr = 128.0 if compute == tl.bfloat16 else 1024.0
        given = given + [(-bias - less).to(compute)]  # noqa: RUF005
    return tl.inline_asm_elementwise(
        pair_asm(compute, part, split, less is None), _registers(split, less is None), given,
        dtype=near.dtype, is_pure=True, pack=4,
    )  # fmt: skip


@triton.constexpr_function
def _registers(split: bool, floats: bool) -> str:
    return "=r,=r" + ",r" * (3 + 2 * split + 2 * (not floats))


@triton.jit
def _part_of(codes, part: tl.constexpr, halves: tl.constexpr):
    """Return the codes of the first or second 64 columns."""
    if halves:
        codes = codes >> 4 if part == 1 else codes & 15
    return codes


@triton.jit
def numbers_of(
    codes, scale, zero, offset, book, row, k, groups, height, part: tl.constexpr,
    halves: tl.constexpr, form: tl.constexpr, group: tl.constexpr, block_k: tl.constexpr,
    block_n: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return what codes mean, as `compute` [block_n, block_k].

    form: "dense", "int8" and "float8", which are numbers already; "codes", "e2m1", "zeros" and
        "offsets", which are scaled by group; "paired e2m1" and "paired zeros", which `paired`
        computes; "book", whose codes are looked up first.
    """
    pairs: tl.constexpr = form == "paired zeros" or form == "paired e2m1"
    if not pairs:
        codes = _part_of(codes, part, halves)
    if form == "int8" or form == "float8":
        values = codes
    elif form == "dense":
        values = codes.to(compute)
    else:
        if form == "book":
            wide = tl.load(book + codes.to(tl.int32))
        elif form == "e2m1":
            wide = e2m1_values(codes)
        elif form == "paired e2m1":
            less: tl.constexpr = None
        elif form == "paired zeros":
            less = by_group(zero, row, k, groups, height, group, block_k, block_n)
        elif form == "zeros":
            less = by_group(zero, row, k, groups, height, group, block_k, block_n)
            if zero.dtype.element_ty == tl.uint8:
                wide = as_float(codes, less)
            else:
                wide = as_float(codes, 0.0) - less
        else:
            wide = as_float(codes, 0.0)
        factor = by_group(scale, row, k, groups, height, group, block_k, block_n)
        if pairs:
            split: tl.constexpr = scale.dtype.element_ty != compute
            values = paired(codes, less, factor, part, split, compute)
        else:
            wide = wide * factor
            if form == "offsets":
                wide = wide + by_group(offset, row, k, groups, height, group, block_k, block_n)
            values = wide.to(compute)
    return values

"""GGUF's IQ1, IQ2 and IQ3: blocks whose values are points of a lattice.

A block has 256 values; d is float16. A number names a point, which is the sizes of 8 values (of 4
in IQ3) as indices of a table. Each value has a sign; of eight signs in 7 bits, the last one is
their parity. IQ1's points have signs of their own, and a sign shifts all values of a point. A code
is an index, plus 8 if its sign is set. Groups of 32, or of 16 in IQ2_XS, IQ2_S and IQ1_M:

    IQ2_XXS   [d][8 × (4 bytes: points; 32 bits: 4 × 7 signs, s)]     d · (2s + 1) / 8 · table[q]
    IQ2_XS    [d][32 × 16 bits: point, 7 signs][8 bytes: s]           d · (2s + 1) / 8 · table[q]
    IQ2_S     [d][32 bytes: points][32 bytes: signs][8 bytes: points, bits 8–9][8 bytes: s]  as XS
    IQ3_XXS   [d][64 bytes: points][8 × 32 bits: 4 × 7 signs, s]      d · (2s + 1) / 4 · table[q]
    IQ3_S     [d][64 bytes: points][8 bytes: bit 8][32 bytes: signs][4 bytes: s]  d · (2s + 1) · …
    IQ1_S     [d][32 bytes: points][8 × 16 bits: 4 × bits 8–10, s, shift]  d · (2s + 1) / 8 · …
    IQ1_M     [32 bytes: points][16 bytes: 2 × (bits 8–10, shift)][4 × 16 bits: 4 × s, 4 bits of d]
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_types import Bytes, Unpacked, fields, halves, spread
from quire.core.quantized import Floats

_NONE = (0,) * 5
"""Codes that no block has."""
LATTICE_VALUES = {
    "iq1": (-7, 1, 9, *_NONE, -9, -1, 7, *_NONE),
    "iq2": (8, 25, 43, *_NONE, -8, -25, -43, *_NONE),
    "iq3": (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62),
    "iq3_s": (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15),
}
"""Codebook → the values of its codes. IQ1's are eight times −1, 0 and 1, plus or minus 1."""


def _iq2_xxs(blocks: Bytes) -> Unpacked:
    d, rest = fields(blocks, 2)
    pairs = rest.reshape(-1, 8, 8)
    signs, s = _four_signs(pairs[..., 4:])
    return Unpacked(_signed("IQ2_XXS", pairs[..., :4], signs), _odd(d, s, 8))


def _iq2_xs(blocks: Bytes) -> Unpacked:
    d, words, s = fields(blocks, 2, 64)
    words = np.ascontiguousarray(words).view("<u2")
    codes = _signed("IQ2_XS", words & 511, _with_parity(words >> 9))
    return Unpacked(codes, _odd(d, spread(s, 4, 1), 8))


def _iq2_s(blocks: Bytes) -> Unpacked:
    d, low, signs, high, s = fields(blocks, 2, 32, 32, 8)
    points = low | spread(high, 2, 1).astype(np.uint16) << 8
    return Unpacked(_signed("IQ2_S", points, signs), _odd(d, spread(s, 4, 1), 8))


def _iq3_xxs(blocks: Bytes) -> Unpacked:
    d, points, rest = fields(blocks, 2, 64)
    signs, s = _four_signs(rest.reshape(-1, 8, 4))
    return Unpacked(_signed("IQ3_XXS", points, signs), _odd(d, s, 4))


def _iq3_s(blocks: Bytes) -> Unpacked:
    d, low, high, signs, s = fields(blocks, 2, 64, 8, 32)
    points = low | spread(high, 1, 1).astype(np.uint16) << 8
    return Unpacked(_signed("IQ3_S", points, signs), _odd(d, spread(s, 4, 1)))


def _iq1_s(blocks: Bytes) -> Unpacked:
    d, low, high = fields(blocks, 2, 32)
    words = np.ascontiguousarray(high).view("<u2")
    points = low | (words[..., None] >> (0, 3, 6, 9) & 7).reshape(low.shape) << 8
    shift = (words >> 15).repeat(4, axis=1)
    return Unpacked(_shifted(points, shift), _odd(d, words >> 12 & 7, 8))


def _iq1_m(blocks: Bytes) -> Unpacked:
    low, high, rest = fields(blocks, 32, 16)
    words = np.ascontiguousarray(rest).view("<u2")
    d = (words >> 12 << (0, 4, 8, 12)).sum(1, keepdims=True, dtype=np.uint16).view(np.uint8)
    top = spread(high, 4, 1).astype(np.uint16)
    s = (words[..., None] >> (0, 3, 6, 9) & 7).reshape(len(words), 16)
    return Unpacked(_shifted(low | (top & 7) << 8, top >> 3), _odd(d, s, 8))


def _odd(d: Bytes, s: npt.NDArray[Any], over: int = 1) -> Floats:
    """Return d · (2 s + 1) / over; all are exact."""
    odd: Floats = (2 * s + 1).astype(np.float32)
    return halves(d) * (odd * np.float32(1 / over))


def _four_signs(field: Bytes) -> tuple[Bytes, npt.NDArray[Any]]:
    """Return bytes of 8 signs [n, 4 · words], and the scales [n, words], of [n, words, 4]."""
    words = np.ascontiguousarray(field).view("<u4")
    return _with_parity(words >> (0, 7, 14, 21) & 127), words[..., 0] >> 28


def _with_parity(seven: npt.NDArray[Any]) -> Bytes:
    """Return bytes [n, …] → [n, all] of seven signs and their parity."""
    signs: Bytes = seven.astype(np.uint8).reshape(len(seven), -1)
    folded = signs ^ signs >> 4
    folded ^= folded >> 2
    signs |= (folded ^ folded >> 1) << 7
    return signs


def _signed(name: str, points: npt.NDArray[Any], signs: Bytes) -> Bytes:
    codes: Bytes = _lattice(name)[points].reshape(len(points), -1)
    codes |= np.unpackbits(signs, axis=1, bitorder="little") << 3
    return codes


def _shifted(points: npt.NDArray[Any], shift: npt.NDArray[Any]) -> Bytes:
    codes: Bytes = _lattice("IQ1")[points]
    codes |= (shift.astype(np.uint8) << 3)[..., None]
    return codes.reshape(len(points), -1)


@cache
def _lattice(name: str) -> Bytes:
    """Return a lattice's points in ggml's order: indices of the table [points, width]."""
    packed = zlib.decompress(base64.b85decode(_LATTICES[name]))
    levels, width = (8, 4) if name.startswith("IQ3") else (3, 8)
    present = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").nonzero()[0]
    return (present[:, None] // levels ** np.arange(width) % levels).astype(np.uint8)


LATTICES: dict[str, Callable[[Bytes], Unpacked]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
"""Type → what unpacks its blocks."""

_LATTICES = {
    "IQ2_XXS": (
        "c-"
        "nPRORB^$43oj#tB`je2YP^R=KfcCw)5@K5e=lV<VbEmf91ogR%p3E0BR^O#16P=^@J3)+t0mx___f>P^zDolEn6;"
        "is&dxI!#Zg_{KuzkVd4Mw`?l*l~*(z5~c8Qj-!-"
        "YZym34v`$TQ4<4*~)dpL;rq|+W4irx`d$&)6^vGb7UkLBrzcFbHqcf>sMFwRxr;MTG;*}m%Qlby-"
        "@@TSk)X7om@@#uKQIjUUWQ&$2&y}*gX5TV=Bc|Cuh1wL(2Kn3A3Yj<N%;gblzhT7_jxp@MF=lA5st5R^Hl2J=^JV"
        "`E{Z0D^#$6R7"
    ),
    "IQ2_XS": (
        "c-mc2TdsvL2pkgnkBRPwCicH3cK=&BJX-bM<{ZTW!^|+oxJIi-qkD|rsuaR~iB<*?x~C4>8J0pJW<V>X*vo#SY&("
        "-c)w(<-"
        "fCU6QVt|)*=>oJ=N8h~B3mmYKBw*Y)Ca<s*uvOak7T*la5<g=kAh?T96(5+bR(Mt@J=L5^n!u1sF+~=p=RjVCGbM"
        "+vDH*59tF!>kC`)-u3GzO}jM8X_r-*1ytubG*&a^iqGs?p-"
        "do}D8x2NWXU?%O)=7t88q040RdJ=Ak)9T+$YBcFD31^6BC_W+mG1}iEA-T}Oj@u6-"
        "pQ1yByIl9%`W3mW#F%j~<yh(N0zSL~oH^Zy%}}tQx4=M73#xoc?jNErTmD?iDs40;(&MG>YYMNuDE=SK;cc#9vM%"
        "q_=>7msuqjC"
    ),
    "IQ2_S": (
        "c-n1JU5W-F3~NE(E9iYHjPDBe{#V(wI=kPpE5rQ7#3X8F%Z9aF@G^(h-"
        "0EI3Em0|W3^QwctZ7zp0a8G#rYWS&oF&YfEj@sgh^u5FBBgC>LAkBEEtarKv-"
        "X}c)kMD5E9g)N*35uFS6j&;COQ!QC2=T0oAzp}=fs8f?3xctXeG?g^dQAA!2(KVP=j1x!<Qgx@l7F)Pu!TMd$m>{"
        "ZzEray(N$AzRb24)#*U9zYZZF^+2!@EVQ9?ARiEH!J<ErE8usn4?()-"
        "BQhW*1pE<<S|Z6aT82aQO}QP4+el6zUY~*z7~Sl6pK?p!Q_DMIhH4w7?joIO9P^#Dw9CRS7mu8OBC|vDii4FoWN_"
        "zK9m?6y$}qXC*pyH_2f!)+bXep&HXz~CYasM7Fd3(JhmM~KIbkHJ7yU4;E692~{FNElHOf~Fzm+TBn!W(JyjC6"
    ),
    "IQ3_XXS": (
        "c-l=-F%H5o3_M%0RAmZ7_lgPeigaLyA4Q!IuVCbv_?)J2Rn;aw-"
        "<^~BWtxCXwzFx0%xW)eST<YW5KL&L;j#hAAHoX-"
        "c)&}FY<X@1m|7IGsjrX>q7@bAuHrcP3L2_`6x)_>^v5;&o?@Fdagv_Uo9H*utGOGEJ93R6P|L2rgx{U}Y-"
        "UnrS3sKYtPIbF!WdDS7|dsT<9UQCqzhJe8+4kK5km%XvHjm=J(sMgqk-e3v^zjTJayVggoDWMJzTWE4a0T)3l-"
        "9P!ydlNePrBA?Xny*@kmBo4W|8$?wEo20v5Uy_5"
    ),
    "IQ3_S": (
        "c-k#d!AiqG5PdVu!e&pqA>uXNMyUCUt<-~hDT4SrX{pfmmf{D9Rs{Q#&TgE;z`Qr}-"
        "rMBob#A|%IbF{W(Id*&Lkwq!%0~0(%@Ao{OU0lD_x2OXCI^OquXIKLt}o^pYnG?L6&oz+9HeSVPSrN(A}t!YmF^X"
        "mp*3Qy-5G8(e|b5Y-"
        "VC?q(AA>+32wuC)HmEXp@c1}PT|h83}iuXSwt^ePGkv?U+Lf3a_=1ov?9@{igP&9v4ypFswx3&TJZ@M2_=SuX>*z"
        "&qp%+CoXl)ge8!drA@5Agyn!FG+()?*sDei}n1QT95(J|p-"
        "wR7#Aht{0!Hx!aZfy;cl!bD4D3uqR(zW`GY5;6>@R{_|3X$jRqNR^eu)^e<Ll^vCYlKPU1;QQ+o$IB(hKom+bHx0"
        "SXmXXwyZnVo8~6jd#wQ>"
    ),
    "IQ1": (
        "c-k#eK}(!R7=CxE;dM-"
        "9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umMk2dT8mb2WdTox*h^v8V"
        "tnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;QqccSPG~@n#@N5uBY$^"
        "gNY22s7}?HYgoxmY#Y+!Ajh1yxWA4l1OzVO1-"
        "XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-"
        "$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^mWiJv*28-"
        "WD<$YEG%#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l64F4MqT|O(RS}"
        "O@H(bLXvHn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-"
        "6?{(2le%HQrc>Le(m#@Cb_P%)g$;r#{<KcsUbe#9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-"
        "z{36HBT$I&mG*v%J#A~V%aSj@pZtCEAg}V1eou`2@uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)K"
        "INV7E3oVy0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}uIeIA*;9XR~L2uzcrHYS+2)y-"
        "rqrtcg6e{stpn$cM#il(dTBx(R&0u-"
        ";P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEMlIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&d"
        "pW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1"
    ),
}
"""Lattice → its points: a bit for each number whose digits are the indices of a point, the first
index lowest; deflated, in base 85. ggml numbers the points in this order."""

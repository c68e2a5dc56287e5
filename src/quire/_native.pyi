"""Native code. Only `ops`, `spec` and `text` import this module; addresses are not checked."""

from typing import final, overload

from typing_extensions import Buffer

FLOAT32: int
BFLOAT16: int

WEIGHT_F32: int
WEIGHT_F16: int
WEIGHT_BF16: int
WEIGHT_S8: int
WEIGHT_S8_A16: int
WEIGHT_U2: int
WEIGHT_U3: int
WEIGHT_U4: int
WEIGHT_U4_BOOK: int
WEIGHT_U5: int
WEIGHT_U6: int
WEIGHT_U8: int
WEIGHT_F8_E4M3: int
WEIGHT_F8_E5M2: int
NO_SECOND: int
ZERO_POINTS: int
OFFSETS: int
EPILOGUES: dict[str, int]
FLOAT16: int
INT8: int
INT4: int
FLOAT8_E4M3: int
FLOAT8_E5M2: int

@final
class Kernels:
    """One instruction set's kernels. The GIL is released while they run."""

    @property
    def isa(self) -> str: ...

@final
class Matrix:
    """Floats of a dtype: rows `stride` elements apart, each dense. A vector is one row."""

    def __init__(self, address: int, rows: int, cols: int, stride: int, dtype: int, /) -> None: ...

@final
class Indices:
    """Contiguous int64."""

    def __init__(self, address: int, size: int, /) -> None: ...

@final
class KvCache:
    """A layer's keys and values, [blocks, kv_heads, block_size, head_dim], a token's dense.

    `shape` is that, strides count elements. The address of values is 0 where they are part of
    keys. The addresses of scales are 0 where there are none; 8-bit floats without them hold x /
    unit, saturated. Keys of int4 alone have signs.
    """

    def __init__(
        self,
        k: int,
        v: int,
        dtype: int,
        k_scale: int,
        v_scale: int,
        k_signs: int,
        k_unit: float,
        v_unit: float,
        shape: tuple[int, int, int, int],
        k_block_stride: int,
        v_block_stride: int,
        head_stride: int,
        /,
    ) -> None: ...

@final
class Sequences:
    """A batch's sequences: addresses of int32 query_start_loc [num + 1], seq_lens [num],
    block_tables [num, stride], and whole [num] or 0."""

    def __init__(
        self, query_start_loc: int, seq_lens: int, block_tables: int, num: int, stride: int,
        whole: int = 0, /,
    ) -> None: ...  # fmt: skip

@final
class States:
    """A batch's sequences and their recurrent states: addresses of int32 query_start_loc [num + 1],
    int32 state_from [num] and int64 state_to [rows], and the number of slots."""

    def __init__(
        self, query_start_loc: int, state_from: int, state_to: int, num: int, slots: int, /
    ) -> None: ...

@final
class StateTables:
    """Addresses of the arrays of `quire.ops.state_slots`; rows and columns of `slots`, columns of
    `working`, and tokens per block."""

    def __init__(
        self,
        slots: int,
        working: int,
        recent: int,
        end: int,
        source: int,
        target: int,
        rows: int,
        blocks: int,
        width: int,
        block_size: int,
        /,
    ) -> None: ...
    def begin_step(self) -> None: ...
    def undo(self) -> None: ...
    def next(self, rows: int, starts: int, first: int, drafts: int, num: int, /) -> None:
        """Addresses of the arrays of `StateTables.next`; 0 for no drafts."""

class Pool:
    """Threads that share a kernel's tasks; the caller is one of them.

    Raises ValueError unless 1 <= threads <= 1024.
    """

    def __init__(self, threads: int, /) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def regions(self) -> int:
        """Jobs that threads shared so far, modulo 2^32; a job of one task is none."""

    def count_tasks(self, counts: int, tasks: int, in_shares: bool, /) -> None:
        """counts[task] += 1 for each of `tasks` int64 counts, by a task each; the tasks are dealt
        out from one queue, or in shares."""

@final
class Plan:
    """Ops recorded on one row, to be run on the rows of any step; see `quire.ops.plans`."""

    def __init__(self, pool: Pool, /) -> None: ...
    def record(self, rows_input: int, /) -> None:
        """Append the pool's ops instead of running them; they have this input's rows. -1: end."""

    def __len__(self) -> int:
        """Ops recorded so far."""

    def add_buffer(
        self, recorded: int, nbytes: int, rows_input: int, region: int, offset: int, /
    ) -> None:
        """The `nbytes` at `recorded` are a row of a buffer with as many rows as input `rows_input`;
        it lies `offset` bytes a row into the region that begins at byte `region` of the arena."""

    def add_input(self, recorded: int, nbytes: int, index: int, /) -> None:
        """The `nbytes` at `recorded` are input `index`."""

    def link(self, arena: int, max_rows: int, /) -> None:
        """Buffers lie at `arena`. Raises ValueError if an op uses memory that was not added."""

    def begin(self, inputs: list[tuple[int, int, int]], /) -> None:
        """Set the step's inputs: (address, rows, elements from row to row) each.

        Raises IndexError for an index outside its table, ValueError for too many rows.
        """

    def run(self, first: int, last: int, /) -> None:
        """Run the ops [first, last) of the step."""

    def precede(self, following: Plan, /) -> None:
        """`following`, which is linked, runs next: have its first weights fetched in between,
        if a step has few rows."""

    def count(self, on: bool, /) -> None:
        """From now on count what each op takes, from zero; off forgets it."""

    def counts(self) -> list[tuple[int, int, int, int, int]]:
        """(calls, nanoseconds, rows, bytes, flops) of each op; empty while not counting."""

    def tallies(self) -> list[list[int]]:
        """Of each mixture of experts: rows of each expert, and the sum over calls of the experts
        that had some; empty for other ops."""

    def trace(self, max_runs: int, /) -> None:
        """From now on note each run of an op, the first so many; 0 ends that and forgets them."""

    def runs(self) -> bytes:
        """int64 [N, 6]: op, begin (nanoseconds of the monotonic clock), nanoseconds, rows, bytes,
        flops."""

@final
class PackedWeight:
    """A weight [n, k] in the kernels' order, padded and aligned; a copy.

    `kind` is one of the WEIGHT codes, `epilogue` one of its own, `parts` the address, the rows and
    the stride between them in elements of each piece of the source, `dtype` the source's, `bias`
    the address of float32 [n] or 0, `group` that of U4. `shape` is what is in `shape` below; alone
    it makes zeros, for `map_packed`. With `source` the codes that are there are kept: addresses
    of bytes [n, k], of scales float32 [n, ceil(k / group)] ([n] for S8 and S8_A16), zero points or
    offsets float32, a codebook uint8 [16] and a permutation int32 [k], 0 for what is not there.
    Raises ValueError for sizes that cannot be packed.
    """

    @overload
    def __init__(
        self, shape: tuple[int, int, int, int, int, int, int, bool, bool, float, int], /
    ) -> None: ...
    @overload
    def __init__(
        self,
        kernels: Kernels,
        pool: Pool,
        kind: int,
        epilogue: int,
        parts: list[tuple[int, int, int]],
        dtype: int,
        k: int,
        bias: int,
        group: int,
        experts: int,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        pool: Pool,
        shape: tuple[int, int, int, int, int, int, int, bool, bool, float, int],
        source: tuple[int, ...],
        bias: int,
        /,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int, int, int, int, int, int, bool, bool, float, int]:
        """Kind, epilogue, n, k, group, what a group has beside its scale (NO_SECOND …), the zero of
        all groups, whether there are a permutation and a bias, the scale of int8 x or 0, and how
        many experts have the n rows."""

    @property
    def nbytes(self) -> int: ...
    @property
    def streamed_bytes(self) -> int:
        """Of `nbytes`, those that come from a file at each use; see `map_packed`."""

    def tune(self, tuned: list[tuple[int, tuple[int, int, int, int, int, int]]], /) -> None:
        """Most rows of x, ascending, and the fields of GemmTuning for them (csrc/cpu/tuning.h).

        Raises ValueError for what no kernel can heed.
        """

    def unpack(self, out: int, /) -> None:
        """Writes the weight as stored to float32 [n, k]."""

def write_packed(fd: int, offset: int, weights: list[PackedWeight], /) -> int:
    """Writes the weights, one after the other, and returns a checksum of the bytes. GIL released.

    Raises OSError.
    """

def map_packed(
    pool: Pool, fd: int, offset: int, weights: list[PackedWeight], streamed: bool, /
) -> int:
    """Fills the weights from a file, with the same checksum. GIL released.

    What a product reads stays in the file, mapped, where the system has it on huge pages; all of it
    if the weights are to be streamed. A file that is cut short later ends the process where it is
    read. Raises OSError, also where the file ends too early.
    """

def packed_end(offset: int, weights: list[PackedWeight], /) -> int:
    """Where the weights end in a file, that begin at `offset`."""

class WeightStream:
    """Made by `stream_packed`. Bytes asked for ahead, and given back to the system, so far."""

    @property
    def read_bytes(self) -> int: ...
    @property
    def given_back_bytes(self) -> int: ...

def stream_packed(
    weights: list[PackedWeight], ahead_bytes: int, give_back: bool, /
) -> WeightStream:
    """Has a thread read mapped weights ahead of the products that use them, in this order.

    At least the weight in use and those behind it up to `ahead_bytes` are in memory; after the
    last comes the first. With `give_back` the pages of all others are given back to the system.
    The thread ends with the weights. Raises ValueError for a weight that is not mapped.
    """

def copy_blocks(
    pool: Pool, parts: list[tuple[int, int, int]], moves: list[tuple[int, int, int]], load: bool, /
) -> list[int]:
    """Copies blocks to rows, or back if `load`; a move is a task. GIL released.

    parts: address, bytes of a block, and bytes from one to the next, of each tensor. moves: block,
    address of its row, and where its checksum begins. Returns the checksums.
    """

class RankGroup:
    """A rank's end of the memory at this address, which `ranks` processes share.

    Raises ValueError where there is no such rank, or more than 64 of them.
    """

    def __init__(self, memory: int, rank: int, ranks: int, /) -> None: ...
    def begin(self, step: int, /) -> None: ...
    def fail(self) -> None: ...
    def lose(self) -> None: ...
    def waited(self, rank: int, /) -> int:
        """Nanoseconds that a rank has waited for others since it began."""

def rank_group_bytes(ranks: int, /) -> int: ...

# Ops: (kernels, pool, results, operands, parameters). They release the GIL, or are recorded into a
# plan. ValueError for what does not fit, IndexError for an index outside its table.

def embedding(
    pool: Pool,
    group: RankGroup | None,
    y: Matrix,
    ids: Indices,
    table: Matrix | None,
    weight: PackedWeight | None,
    first: int,
    vocab: int,
    /,
) -> None:
    """y = rows `ids` of a table, or of a weight that was packed. In a group the table has `vocab`
    rows, of which this rank has those from `first` on; raises as `all_reduce`."""

def all_reduce(kernels: Kernels, pool: Pool, group: RankGroup, y: Matrix, x: Matrix, /) -> None:
    """y = the ranks' float32 x, added up and rounded.

    Raises RuntimeError where another rank has failed, or is gone.
    """

def all_gather(pool: Pool, group: RankGroup, y: Matrix, x: Matrix, first: int, /) -> None:
    """y [rows, width] = the ranks' float32 x, this one's from column `first` on.

    Raises as `all_reduce`.
    """

def rank_norms(
    kernels: Kernels,
    pool: Pool,
    group: RankGroup,
    q: tuple[Matrix, Matrix, int, bool],
    k: tuple[Matrix, Matrix, int, bool],
    eps: float,
    /,
) -> None:
    """RMSNorms in place of q and k, of which every rank has some columns.

    q, k: this rank's columns, its part of the weight, the columns of all ranks, and whether its
        sum counts: of ranks with the same columns, one does.

    Raises as `all_reduce`.
    """

def linear(kernels: Kernels, pool: Pool, weight: PackedWeight, y: Matrix, x: Matrix, /) -> None:
    """y = epilogue(x · weightᵀ + bias)."""

def head_linear(
    kernels: Kernels, pool: Pool, weight: PackedWeight, y: Matrix, x: Matrix, first: int, /
) -> None:
    """y[r, h] = x[r, h, first : first + k] · weight[h]ᵀ; the weight's experts are the heads."""

def prepare_linear(kernels: Kernels, pool: Pool, weight: PackedWeight, x: Matrix, /) -> None:
    """What `linear` does to x before it multiplies, for measurements."""

def lora_add(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    x: Matrix,
    entries: int,
    adapters: int,
    ends: list[int],
    adapter: Indices,
    /,
) -> None:
    """`entries` are those of `ops.lora.LoraTable`; `ends` the column behind each part."""

def route(
    kernels: Kernels,
    pool: Pool,
    experts: int,
    weights: Matrix,
    logits: Matrix,
    bias: int,
    factors: int,
    spec: tuple[bool, bool, float, float, int, int, bool, float, float],
    /,
) -> None:
    """experts int64 [rows, top_k] and their weights float32, as `Ops.route`. bias, factors: float32
    [experts], or 0. spec: whether scores are sigmoids; `renormalize`, `epsilon`, `least`,
    `num_groups` and `top_groups` of `RouteSpec`; whether groups count as two experts; `scale` and
    `band`."""

def moe(
    kernels: Kernels,
    pool: Pool,
    gate_up: PackedWeight,
    down: PackedWeight,
    y: Matrix,
    x: Matrix,
    experts: int,
    weights: Matrix,
    weight_on_input: bool,
    /,
) -> None:
    """As `Ops.moe`; experts int64 [rows, top_k]."""

def activation(kernels: Kernels, pool: Pool, epilogue: int, y: Matrix, x: Matrix, /) -> None:
    """y = f(x), one of EPILOGUES; of a gated one x is gate and up, side by side."""

def scale(kernels: Kernels, pool: Pool, y: Matrix, x: Matrix, factor: float, /) -> None: ...
def softcap(kernels: Kernels, pool: Pool, y: Matrix, x: Matrix, cap: float, /) -> None: ...
def xielu(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    x: Matrix,
    positive: float,
    negative: float,
    linear: float,
    /,
) -> None: ...
def add(kernels: Kernels, pool: Pool, out: Matrix, x: Matrix, y: Matrix, /) -> None: ...
def rms_norm(
    kernels: Kernels, pool: Pool, y: Matrix, x: Matrix, weight: Matrix, eps: float, /
) -> None:
    """y = weight * (x / rms(x)) per row; `y` may be `x`. The weight may be float32."""

def add_rms_norm(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    residual_out: Matrix,
    x: Matrix,
    residual: Matrix,
    weight: Matrix,
    eps: float,
    /,
) -> None:
    """residual_out = x + residual, y = rms_norm(residual_out) per row.

    `residual_out` may be `residual` or `x`, and `y` may be the other one.
    """

def layer_norm(
    kernels: Kernels, pool: Pool, y: Matrix, x: Matrix, weight: Matrix, bias: Matrix, eps: float, /
) -> None:
    """y = (x - mean) / sqrt(variance + eps) * weight + bias per row; `y` may be `x`."""

def add_layer_norm(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    residual_out: Matrix,
    x: Matrix,
    residual: Matrix,
    weight: Matrix,
    bias: Matrix,
    eps: float,
    /,
) -> None:
    """residual_out = x + residual, y = layer_norm(residual_out) per row."""

def rope_kv_write(
    kernels: Kernels,
    pool: Pool,
    q_out: Matrix,
    qkv: Matrix,
    positions: Indices,
    cos_sin: Matrix | None,
    q_norm: Matrix | None,
    k_norm: Matrix | None,
    v_norm: Matrix | None,
    eps: float,
    cache: KvCache,
    slot_mapping: Indices,
    /,
) -> None:
    """Norm and rotation of heads, where given, and KV write. The cache is of qkv's dtype, BFLOAT16
    or of 8 bits."""

def causal_conv1d(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    x: Matrix,
    weight: Matrix,
    bias: int,
    state: int,
    states: States,
    kind: int,
    /,
) -> None:
    """As `Ops.causal_conv1d`; kind: 0 plain, 1 silu, 2 gated."""

def gated_delta_rule(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    qkv: Matrix,
    decay: Matrix,
    beta: Matrix,
    rate: Matrix,
    bias: Matrix,
    state: int,
    states: States,
    shape: tuple[int, int, int, int],
    /,
) -> None:
    """As `Ops.gated_delta_rule`; shape: heads, rows and columns of a state, key heads."""

def mamba2_scan(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    xbc: Matrix,
    dt: Matrix,
    rate: Matrix,
    skip: Matrix,
    bias: Matrix,
    state: int,
    states: States,
    shape: tuple[int, int, int, int],
    low: float,
    high: float,
    /,
) -> None:
    """As `Ops.mamba2_scan`; shape: heads, rows and columns of a state, groups."""

def gated_norm(
    kernels: Kernels,
    pool: Pool,
    y: Matrix,
    x: Matrix,
    gate: Matrix,
    weight: int,
    weights: int,
    group: int,
    eps: float,
    kind: int,
    norm_first: bool,
    each: int,
    /,
) -> None:
    """As `Ops.gated_norm`; `weights` elements of float32 at `weight`, which may be 0. Kinds of
    gate: sigmoid, silu, factor."""

def latent_attention(
    kernels: Kernels,
    pool: Pool,
    out: Matrix,
    q: Matrix,
    q_rope: Matrix,
    cache: KvCache,
    batch: Sequences,
    heads: int,
    scale: float,
    split: int,
    /,
) -> None:
    """Attention over latents: all heads read one row per token, [rope | latent]."""

def paged_attention(
    kernels: Kernels,
    pool: Pool,
    out: Matrix,
    q: Matrix,
    cache: KvCache,
    batch: Sequences,
    window: int,
    causal: bool,
    scale: float,
    softcap: float,
    split: int,
    tuning: tuple[int, int, int],
    sinks: int = 0,
    chunked: bool = False,
    /,
) -> None:
    """out[t] = softmax(scale * q[t] . k) v over the cached tokens of t's sequence up to t, or, if
    that is not `causal`, behind it as well. A row of q and out is a token's heads.

    `window` 0 is no window; `sinks` is the address of one more score per head, a float, or 0;
    if `chunked`, `window` is the size of chunks; `tuning` is AttentionTuning (csrc/cpu/tuning.h).
    Raises ValueError for more than 64 heads per kv head.
    """

def argmax(kernels: Kernels, pool: Pool, tokens: int, peaks: int, logits: Matrix, /) -> None:
    """First index of each row's largest float, -1 where it is not finite."""

def exp2(kernels: Kernels, y: int, x: int, count: int, /) -> None:
    """y[i] = 2^x[i] as the softmax of attention computes it; x <= 127."""

@final
class SampleRow:
    """What one row of logits is sampled with; `ops.sample_row.SampleRow` tells what each means.

    Token ids are int64 [size], floats float32 [size], by address: the row's edits read them when
    it is sampled. Raises IndexError for a token outside [0, vocab).
    """

    def __init__(
        self, row: int, temperature: float, top_k: int, top_p: float, min_p: float, u: float, /
    ) -> None: ...
    def key(self, key: int, /) -> None:
        """Draw with the noise of `key`, in [0, 2^64)."""

    def mask(self, words: int, size: int, vocab: int, /) -> None:
        """`size` words of 32 bits; IndexError where they do not cover the vocabulary."""

    def allow(self, ids: int, size: int, vocab: int, /) -> None: ...
    def ban(self, ids: int, size: int, vocab: int, /) -> None: ...
    def bias(self, ids: int, size: int, vocab: int, values: int, /) -> None: ...
    def penalize(
        self,
        ids: int,
        size: int,
        vocab: int,
        counts: int,
        repetition: float,
        frequency: float,
        presence: float,
        /,
    ) -> None: ...

@final
class Sampler:
    """Samples rows of float32 logits on a pool; keeps its intermediate memory.

    `logits` is [rows, vocab]. Raises IndexError for a row or token that is not there.
    """

    def __init__(self, kernels: Kernels, pool: Pool, /) -> None: ...
    def sample(self, logits: Matrix, rows: list[SampleRow], tokens: int, /) -> None:
        """tokens (int64) of `rows`; -1 where the largest logit is not finite."""

    def logprobs(
        self,
        logits: Matrix,
        rows: Indices,
        tokens: Indices,
        k: int,
        ids: int,
        values: int,
        ranks: int,
        sampled: list[SampleRow],
        named: int,
        as_logits: bool,
        /,
    ) -> None:
        """ids (int64), values (float64), [count, 1 + k + named]: tokens[i], then the k likeliest.

        The last ids of each row are the caller's. Values are the model's if `sampled` is empty,
        else those that tokens are drawn from. ranks are int64 [count]. Raises ValueError unless
        0 <= k <= vocab.
        """

class DraftIndex:
    """Finds drafts in texts that were seen before, one text per slot. It needs no model."""

    def begin(self, slot: int, first_own: int, shares: bool, /) -> None:
        """Start an empty text; its tokens from `first_own` on are output.

        `shares`: it may use the texts of earlier sequences, and adds its output to them.
        """

    def end(self, slot: int, tokens: int, num_tokens: int, /) -> None:
        """Forget the slot's text, which is tokens[:num_tokens] (int32)."""

    def propose(
        self,
        tokens: int,
        num_tokens: int,
        width: int,
        slots: int,
        most: int,
        counts: int,
        size: int,
        /,
    ) -> None:
        """Write drafts behind each text, and how many to counts (int64 [size]).

        tokens is int32 [all slots, width], num_tokens int64 [all slots]; slots and most (the most
        drafts of each) are int64 [size].
        """

@final
class NgramIndex(DraftIndex):
    """Prompt lookup: what followed the first occurrence of the text's longest known end."""

    def __init__(self, slots: int, min_tokens: int, max_tokens: int, /) -> None: ...

@final
class SuffixIndex(DraftIndex):
    """Suffix decoding: the most frequent continuation in the text and in earlier answers."""

    def __init__(
        self,
        slots: int,
        max_depth: int,
        max_answers: int,
        max_tokens: int,
        max_factor: float,
        min_probability: float,
        /,
    ) -> None: ...

@final
class DraftDraw:
    """How a sequence's drafts are drawn: `SampleRow` tells what each means; no edits."""

    def __init__(
        self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, /
    ) -> None: ...

@final
class DraftPasses:
    """Runs a draft model's passes; see csrc/spec/draft_passes.h.

    A plan is a `WholePlan` (see `quire.ops.plans`): the plan, the address of its result, the bytes
    that a row adds to it, and the elements from row to row.
    """

    def __init__(
        self,
        forward: tuple[Plan, int, int, int],
        logits: tuple[Plan, int, int, int],
        sampler: Sampler,
        vocab: int,
        block_size: int,
        max_tokens: int,
        max_sequences: int,
        width: int,
        /,
    ) -> None: ...
    def run(
        self,
        tokens: int,
        width: int,
        tables: int,
        sequences: list[tuple[int, int, int, int, int, DraftDraw]],
        /,
    ) -> None:
        """Compute tokens of each sequence, and write drafts behind them.

        tokens is int32 [all slots, width], tables int32 [all slots, blocks]. A sequence is (slot,
        first token, tokens, drafts, output tokens, how to draw); those with more drafts first.
        """

def emulated() -> list[str]:
    """Names of the tables here of which some instructions are emulated by signals, for tests.

    `table` of one installs the handler, once.
    """

def detect() -> list[str]:
    """Names of the instruction sets that this machine can run, least capable first."""

def features() -> dict[str, bool]:
    """Processor features that both the processor and the operating system offer."""

def table(name: str, /) -> Kernels:
    """The kernels of an instruction set.

    Raises ValueError, naming what is available, for one that is unknown or cannot run here.
    """

@final
class BytePairs:
    """A BPE vocabulary, from the members `vocab` and `merges` of a tokenizer.json's model.

    Raises ValueError where these are damaged or do not belong together. `max_bytes` and `max_chars`
    are those of the longest token.
    """

    def __init__(
        self,
        vocabulary: Buffer,
        merges: Buffer,
        unknown: str,
        fuses_unknown: bool,
        falls_back_to_bytes: bool,
        takes_whole_words: bool,
        /,
    ) -> None:
        """`unknown` is the token of characters that have none; if it is empty, they vanish."""

    def encode(self, words: list[str], kinds: list[int], added: list[int], /) -> list[int]:
        """Return the ids of words. Where a kind is not 0, `added` has the id at this index."""

    def token(self, token_id: int, /) -> str | None: ...
    def id(self, token: str, /) -> int | None: ...
    @property
    def size(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def max_chars(self) -> int: ...

def resize(
    kernels: Kernels,
    pixels: Buffer,
    width: int,
    height: int,
    resample: int,
    new_width: int,
    new_height: int,
    /,
) -> bytes:
    """Return an image in another size, as Pillow does: Lanczos (1), bilinear (2), bicubic (3).

    `pixels` are lines of three bytes per pixel.
    """

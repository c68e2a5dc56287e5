// AMX's tile instructions in software, for tests. A handler emulates each one when it raises SIGILL on a
// processor without AMX. So any machine with AVX-512 BF16 tests the compiled machine code of the AMX
// kernels. A signal takes some microseconds.
//
// The emulation follows the published definitions (Intel SDM, volume 2), including the order of sums,
// subnormal numbers and faults: wrong shapes, and a use before the configuration is loaded, trap.
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

#include "kernels.h"

namespace quire::amx_emulated {

namespace {

struct Tile {
  int rows, row_bytes;  // as configured, else 0
  alignas(64) uint8_t bytes[16][64];
};
thread_local Tile tiles[8];

void require(bool fits) {
  if (!fits) __builtin_trap();
}

Tile& configured(int t) {
  Tile& tile = tiles[t];
  require(tile.rows > 0);
  return tile;
}

void clear(Tile& tile) { __builtin_memset(tile.bytes, 0, sizeof tile.bytes); }

void loadconfig(const void* memory) {
  const uint8_t* config = static_cast<const uint8_t*>(memory);
  require(config[0] == 1);
  for (int i = 0; i < 64; ++i) {
    const bool reserved = (i >= 2 && i < 16) || (i >= 32 && i < 48) || i >= 56;
    require(!reserved || config[i] == 0);
  }
  for (int t = 0; t < 8; ++t) {
    Tile& tile = tiles[t];
    uint16_t row_bytes;
    __builtin_memcpy(&row_bytes, config + 16 + 2 * t, sizeof row_bytes);
    tile.rows = config[48 + t];
    tile.row_bytes = row_bytes;
    require(tile.rows <= 16 && tile.row_bytes <= 64 && (tile.rows == 0) == (tile.row_bytes == 0));
    clear(tile);
  }
}

void release() {
  for (Tile& tile : tiles) {
    tile.rows = tile.row_bytes = 0;
    clear(tile);
  }
}

void load(int t, const void* base, int64_t stride) {
  Tile& tile = configured(t);
  clear(tile);
  for (int r = 0; r < tile.rows; ++r) {
    __builtin_memcpy(tile.bytes[r], static_cast<const uint8_t*>(base) + r * stride,
                     static_cast<unsigned>(tile.row_bytes));
  }
}

void store(int t, void* base, int64_t stride) {
  const Tile& tile = configured(t);
  for (int r = 0; r < tile.rows; ++r) {
    __builtin_memcpy(static_cast<uint8_t*>(base) + r * stride, tile.bytes[r],
                     static_cast<unsigned>(tile.row_bytes));
  }
}

// c += a x b: of a row of a, each 4 bytes meet a line of b. Products has
//   add(x, w)   takes their products in
//   onto(sum)   sum + all of them
template <class Products>
void multiply(int c_, int a_, int b_) {
  Tile &c = configured(c_), &a = configured(a_), &b = configured(b_);
  require(c_ != a_ && c_ != b_ && a_ != b_ && a.rows == c.rows && b.row_bytes == c.row_bytes &&
          a.row_bytes == 4 * b.rows);
  for (int m = 0; m < c.rows; ++m) {
    Products products;
    for (int k = 0; k < b.rows; ++k) {
      int32_t four;
      __builtin_memcpy(&four, a.bytes[m] + 4 * k, sizeof four);
      products.add(_mm512_set1_epi32(four), _mm512_load_si512(b.bytes[k]));
    }
    const __m512i sum = products.onto(_mm512_load_si512(c.bytes[m]));
    __builtin_memcpy(c.bytes[m], &sum, static_cast<unsigned>(c.row_bytes));
  }
}

// v without subnormal numbers, which are zeros to the instruction, going in and coming out.
__m512 flushed(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, small, bits, sign));
}

// Products of even columns and those of odd ones are summed apart, from zero; then both together are
// added.
struct BF16Products {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();

  // AVX-512's instruction flushes as AMX's does; of a pair it is given one half.
  static __m512 fma(__m512 sum, __m512i x, __m512i w, uint32_t half) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(half));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_and_si512(x, mask)),
                            reinterpret_cast<__m512bh>(_mm512_and_si512(w, mask)));
  }
  void add(__m512i x, __m512i w) {
    even = fma(even, x, w, 0x0000ffff);
    odd = fma(odd, x, w, 0xffff0000);
  }
  __m512i onto(__m512i sum) const {
    const __m512 both = flushed(_mm512_add_ps(even, odd));
    return _mm512_castps_si512(
        flushed(_mm512_add_ps(flushed(_mm512_castsi512_ps(sum)), both)));
  }
};

// Bytes of both sides extended to 32 bits, multiplied and added: exact.
template <bool kSignedX, bool kSignedW>
struct ByteProducts {
  __m512i total = _mm512_setzero_si512();

  void add(__m512i x, __m512i w) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      const __m512i left = _mm512_slli_epi32(x, shift), right = _mm512_slli_epi32(w, shift);
      const __m512i p = kSignedX ? _mm512_srai_epi32(left, 24) : _mm512_srli_epi32(left, 24);
      const __m512i q = kSignedW ? _mm512_srai_epi32(right, 24) : _mm512_srli_epi32(right, 24);
      total = _mm512_add_epi32(total, _mm512_mullo_epi32(p, q));
    }
  }
  __m512i onto(__m512i sum) const { return _mm512_add_epi32(sum, total); }
};

// Which instruction it is: the opcode, and the prefix that VEX stands for.
enum Prefix : int { kNone, k66, kF3, kF2 };
constexpr int code(int opcode, Prefix prefix) { return opcode << 2 | prefix; }

// A general register, numbered as instructions do.
int64_t general(const greg_t* registers, int number) {
  constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return registers[kPlaces[number]];
}

// A tile instruction: VEX of three bytes, map 0F38, W and L 0.
struct Instruction {
  const uint8_t* at;

  bool is_vex() const { return at[0] == 0xc4 && (at[1] & 0x1f) == 2 && (at[2] & 0x84) == 0; }
  int kind() const { return code(at[3], static_cast<Prefix>(at[2] & 3)); }
  bool in_memory() const { return at[4] < 0xc0; }
  int first() const { return at[4] >> 3 & 7; }   // of its tiles
  int second() const { return at[4] & 7; }
  int third() const { return ~at[2] >> 3 & 7; }
};

// An operand in memory: its address, the stride of its rows, and the end of the instruction.
struct Memory {
  uint8_t* base;
  int64_t stride = 0;
  const uint8_t* end;

  Memory(const uint8_t* at, const greg_t* registers) {
    const int mode = at[4] >> 6, upper_index = (~at[1] & 0x40) >> 3, upper_base = (~at[1] & 0x20) >> 2;
    int low = at[4] & 7;
    end = at + 5;
    if (low == 4) {
      const int scale = *end >> 6, index = (*end >> 3 & 7) | upper_index;
      if (index != 4) stride = general(registers, index) << scale;
      low = *end++ & 7;
    }
    const bool absolute = mode == 0 && low == 5;  // or from the instruction's end, without a scale
    const bool relative = absolute && (at[4] & 7) == 5;
    int64_t address = absolute ? 0 : general(registers, low | upper_base);
    if (mode == 1) {
      address += static_cast<int8_t>(*end++);
    } else if (mode == 2 || absolute) {
      int32_t offset;
      __builtin_memcpy(&offset, end, sizeof offset);
      end += sizeof offset;
      address += offset + (relative ? reinterpret_cast<int64_t>(end) : 0);
    }
    base = reinterpret_cast<uint8_t*>(address);
  }
};

// Runs the instruction that is next, if it is one of tiles.
bool run_next(greg_t* registers) {
  const Instruction i{reinterpret_cast<const uint8_t*>(registers[REG_RIP])};
  if (!i.is_vex()) return false;
  const uint8_t* end = i.at + 5;
  if (i.in_memory()) {
    const Memory memory(i.at, registers);
    end = memory.end;
    switch (i.kind()) {
      case code(0x49, kNone): loadconfig(memory.base); break;
      case code(0x4b, k66):
      case code(0x4b, kF2): load(i.first(), memory.base, memory.stride); break;
      case code(0x4b, kF3): store(i.first(), memory.base, memory.stride); break;
      default: return false;
    }
  } else {
    switch (i.kind()) {
      case code(0x49, kNone): release(); break;
      case code(0x49, kF2): clear(configured(i.first())); break;
      case code(0x5c, kF3): multiply<BF16Products>(i.first(), i.second(), i.third()); break;
      case code(0x5e, kF2): multiply<ByteProducts<true, true>>(i.first(), i.second(), i.third()); break;
      case code(0x5e, kF3): multiply<ByteProducts<true, false>>(i.first(), i.second(), i.third()); break;
      case code(0x5e, k66): multiply<ByteProducts<false, true>>(i.first(), i.second(), i.third()); break;
      case code(0x5e, kNone):
        multiply<ByteProducts<false, false>>(i.first(), i.second(), i.third());
        break;
      default: return false;
    }
  }
  registers[REG_RIP] = reinterpret_cast<greg_t>(end);
  return true;
}

struct sigaction before;

// One signal serves all tile instructions that follow each other.
void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (!run_next(registers)) {
    sigaction(SIGILL, &before, nullptr);  // not a tile instruction: it is raised again
    return;
  }
  while (run_next(registers)) {
  }
}

Kernels start_to_emulate() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before);
  Kernels kernels = amx::table();
  kernels.isa = "amx_emulated";
  return kernels;
}

}  // namespace

// For callers that hold Python's lock.
const Kernels& table() {
  static Kernels kernels{};
  if (kernels.isa == nullptr) kernels = start_to_emulate();
  return kernels;
}

}  // namespace quire::amx_emulated

// AMX's tile intrinsics; with QUIRE_EMULATE_TILES, a stand-in in software under the same names.
//
// The stand-in lets any machine with AVX-512 BF16 test the tile kernels. It follows the instructions'
// published definitions (Intel SDM, volume 2), the order of sums and what happens to subnormal
// numbers included, down to their faults: shapes that do not fit, or a use before the configuration
// is loaded, trap. It is slow, and never chosen by itself.
#pragma once

#if defined(__AMX_TILE__) || defined(QUIRE_EMULATE_TILES)
#define QUIRE_TILES 1
#include <immintrin.h>
#include <stdint.h>
#endif

#if defined(QUIRE_EMULATE_TILES) && !defined(__AMX_TILE__)

namespace quire::QUIRE_ISA {
namespace {

struct EmulatedTile {
  int rows, row_bytes;  // as configured; 0 where they are not
  alignas(64) uint8_t bytes[16][64];
};
thread_local EmulatedTile emulated_tiles[8];

inline void require(bool fits) {
  if (!fits) __builtin_trap();
}

inline EmulatedTile& configured(int t) {
  EmulatedTile& tile = emulated_tiles[t];
  require(tile.rows > 0);
  return tile;
}

inline void clear(EmulatedTile& tile) { __builtin_memset(tile.bytes, 0, sizeof tile.bytes); }

inline void emulate_loadconfig(const void* memory) {
  const uint8_t* config = static_cast<const uint8_t*>(memory);
  require(config[0] == 1);
  for (int i = 0; i < 64; ++i) {
    const bool reserved = (i >= 2 && i < 16) || (i >= 32 && i < 48) || i >= 56;
    require(!reserved || config[i] == 0);
  }
  for (int t = 0; t < 8; ++t) {
    EmulatedTile& tile = emulated_tiles[t];
    uint16_t row_bytes;
    __builtin_memcpy(&row_bytes, config + 16 + 2 * t, sizeof row_bytes);
    tile.rows = config[48 + t];
    tile.row_bytes = row_bytes;
    require(tile.rows <= 16 && tile.row_bytes <= 64 && (tile.rows == 0) == (tile.row_bytes == 0));
    clear(tile);
  }
}

inline void emulate_release() {
  for (EmulatedTile& tile : emulated_tiles) {
    tile.rows = tile.row_bytes = 0;
    clear(tile);
  }
}

inline void emulate_load(int t, const void* base, int64_t stride) {
  EmulatedTile& tile = configured(t);
  clear(tile);
  for (int r = 0; r < tile.rows; ++r) {
    __builtin_memcpy(tile.bytes[r], static_cast<const uint8_t*>(base) + r * stride,
                     static_cast<unsigned>(tile.row_bytes));
  }
}

inline void emulate_store(int t, void* base, int64_t stride) {
  const EmulatedTile& tile = configured(t);
  for (int r = 0; r < tile.rows; ++r) {
    __builtin_memcpy(static_cast<uint8_t*>(base) + r * stride, tile.bytes[r],
                     static_cast<unsigned>(tile.row_bytes));
  }
}

// c += a x b: of a row of a, each 4 bytes meet a line of b. Products has
//   add(x, w)   takes their products in
//   onto(sum)   sum + all of them
template <class Products>
inline void emulate_dot(int c_, int a_, int b_) {
  EmulatedTile &c = configured(c_), &a = configured(a_), &b = configured(b_);
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
inline __m512 flushed(__m512 v) {
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

}  // namespace
}  // namespace quire::QUIRE_ISA

// The header's own are macros in part.
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(config) emulate_loadconfig(config)
#define _tile_release() emulate_release()
#define _tile_zero(t) clear(configured(t))
#define _tile_loadd(t, base, stride) emulate_load(t, base, stride)
#define _tile_stream_loadd(t, base, stride) emulate_load(t, base, stride)
#define _tile_stored(t, base, stride) emulate_store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) (emulate_dot<BF16Products>(c, a, b))
#define _tile_dpbssd(c, a, b) (emulate_dot<ByteProducts<true, true>>(c, a, b))
#define _tile_dpbsud(c, a, b) (emulate_dot<ByteProducts<true, false>>(c, a, b))
#define _tile_dpbusd(c, a, b) (emulate_dot<ByteProducts<false, true>>(c, a, b))
#define _tile_dpbuud(c, a, b) (emulate_dot<ByteProducts<false, false>>(c, a, b))

#endif

#if defined(QUIRE_TILES)

namespace quire::QUIRE_ISA {
namespace {

// The shapes of the tile registers, as the instruction reads them.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

inline void configure(const TileConfig& config) {
  __asm__ volatile("" : : "r"(&config) : "memory");  // see QUIRE_TILE_LOAD
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace quire::QUIRE_ISA

// GCC's intrinsics are assembly that does not say which memory it reads: it may drop stores to what a
// tile is loaded from, or move them behind the load (GCC 12 did so with a configuration).
#define QUIRE_TILE_LOAD(t, base, stride)   \
  do {                                     \
    __asm__ volatile("" : : : "memory");   \
    _tile_loadd(t, base, stride);          \
  } while (0)

#endif

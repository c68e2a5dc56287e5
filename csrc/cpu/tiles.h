// AMX's tile intrinsics; with QUIRE_EMULATE_TILES, a stand-in in software under the same names.
//
// The stand-in lets any machine with AVX-512 BF16 test the tile kernels. It follows the instructions'
// published definitions (Intel SDM, volume 2) down to their faults: shapes that do not fit, or a use
// before the configuration is loaded, trap. It is slow, and never chosen by itself.
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

// c += a x b, `dot` adding the products of 4 bytes of a row of a with one line of b.
template <class Dot>
inline void emulate_dot(int c_, int a_, int b_, const Dot& dot) {
  EmulatedTile &c = configured(c_), &a = configured(a_), &b = configured(b_);
  require(c_ != a_ && c_ != b_ && a_ != b_ && a.rows == c.rows && b.row_bytes == c.row_bytes &&
          a.row_bytes == 4 * b.rows);
  for (int m = 0; m < c.rows; ++m) {
    __m512i sum = _mm512_load_si512(c.bytes[m]);
    for (int k = 0; k < b.rows; ++k) {
      int32_t four;
      __builtin_memcpy(&four, a.bytes[m] + 4 * k, sizeof four);
      sum = dot(sum, _mm512_set1_epi32(four), _mm512_load_si512(b.bytes[k]));
    }
    __builtin_memcpy(c.bytes[m], &sum, static_cast<unsigned>(c.row_bytes));
  }
}

inline void emulate_dpbf16ps(int c, int a, int b) {
  emulate_dot(c, a, b, [](__m512i sum, __m512i x, __m512i w) {
    return _mm512_castps_si512(
        _mm512_dpbf16_ps(_mm512_castsi512_ps(sum), reinterpret_cast<__m512bh>(x),
                         reinterpret_cast<__m512bh>(w)));
  });
}

// Bytes of both sides extended to 32 bits, multiplied and added: exact.
template <bool kSignedX, bool kSignedW>
inline void emulate_dpb(int c, int a, int b) {
  emulate_dot(c, a, b, [](__m512i sum, __m512i x, __m512i w) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      const __m512i left = _mm512_slli_epi32(x, shift), right = _mm512_slli_epi32(w, shift);
      const __m512i p = kSignedX ? _mm512_srai_epi32(left, 24) : _mm512_srli_epi32(left, 24);
      const __m512i q = kSignedW ? _mm512_srai_epi32(right, 24) : _mm512_srli_epi32(right, 24);
      sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(p, q));
    }
    return sum;
  });
}

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
#define _tile_dpbf16ps(c, a, b) emulate_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b) (emulate_dpb<true, true>(c, a, b))
#define _tile_dpbsud(c, a, b) (emulate_dpb<true, false>(c, a, b))
#define _tile_dpbusd(c, a, b) (emulate_dpb<false, true>(c, a, b))
#define _tile_dpbuud(c, a, b) (emulate_dpb<false, false>(c, a, b))

#endif

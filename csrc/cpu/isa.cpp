#include "isa.h"

#if defined(QUIRE_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace quire {

namespace {

#if defined(QUIRE_X86)

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // stay zero for an unknown leaf

  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

// The register states that the operating system saves on a context switch.
unsigned saved_states() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuFeatures detect() {
  CpuFeatures f{};
  const Cpuid leaf1(1, 0), leaf7(7, 0), leaf7_1(7, 1);
  const bool osxsave = bit(leaf1.ecx, 27);
  const unsigned saved = osxsave ? saved_states() : 0;
  const bool ymm = (saved & 0x6) == 0x6;                  // SSE, AVX
  const bool zmm = ymm && (saved & 0xe0) == 0xe0;         // opmask, upper halves, upper sixteen
  const bool tiles = (saved & 0x60000) == 0x60000;        // tile configuration, tile data
  f.avx2 = ymm && bit(leaf7.ebx, 5);
  f.fma = ymm && bit(leaf1.ecx, 12);
  f.f16c = ymm && bit(leaf1.ecx, 29);
  f.avx_vnni = ymm && bit(leaf7_1.eax, 4);
  f.avx512f = zmm && bit(leaf7.ebx, 16);
  f.avx512bw = zmm && bit(leaf7.ebx, 30);
  f.avx512dq = zmm && bit(leaf7.ebx, 17);
  f.avx512vl = zmm && bit(leaf7.ebx, 31);
  f.avx512vbmi = zmm && bit(leaf7.ecx, 1);
  f.avx512_vnni = zmm && bit(leaf7.ecx, 11);
  f.avx512_bf16 = zmm && bit(leaf7_1.eax, 5);
  f.avx512_fp16 = zmm && bit(leaf7.edx, 23);
  f.amx_tile = tiles && bit(leaf7.edx, 24);
  f.amx_int8 = tiles && bit(leaf7.edx, 25);
  f.amx_bf16 = tiles && bit(leaf7.edx, 22);
  return f;
}

[[maybe_unused]] bool has_avx2(const CpuFeatures& f) { return f.avx2 && f.fma && f.f16c; }

[[maybe_unused]] bool has_avx512(const CpuFeatures& f) {
  return has_avx2(f) && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl;
}

[[maybe_unused]] bool has_avx512_vnni(const CpuFeatures& f) {
  return has_avx512(f) && f.avx512_vnni && f.avx512_bf16 && f.avx512vbmi;
}

// Linux hands out the tile registers only to a process that asks for them; its threads inherit it.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

[[maybe_unused]] bool has_amx(const CpuFeatures& f) {
  static const bool available =
      has_avx512_vnni(f) && f.amx_tile && f.amx_int8 && f.amx_bf16 && may_use_tiles();
  return available;
}

#else

CpuFeatures detect() {
  CpuFeatures f{};
#if defined(__aarch64__)
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  f.asimddp = (first >> 20 & 1) != 0;  // HWCAP_ASIMDDP
  f.i8mm = (second >> 13 & 1) != 0;    // HWCAP2_I8MM
  f.bf16 = (second >> 14 & 1) != 0;    // HWCAP2_BF16
#endif
  return f;
}

#endif

[[maybe_unused]] bool has_i8mm(const CpuFeatures& f) { return f.asimddp && f.i8mm && f.bf16; }

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

const IsaEntry* isa_entries(int& count) {
  static const IsaEntry entries[] = {
      {"portable", true, false, portable::table},
#if defined(QUIRE_HAS_neon)  // which every 64-bit ARM runs
      {"neon", true, false, neon::table},
#endif
#if defined(QUIRE_HAS_dotprod)
      {"dotprod", cpu_features().asimddp, false, dotprod::table},
#endif
#if defined(QUIRE_HAS_i8mm)
      {"i8mm", has_i8mm(cpu_features()), false, i8mm::table},
#endif
#if defined(QUIRE_HAS_avx2)
      {"avx2", has_avx2(cpu_features()), false, avx2::table},
#endif
#if defined(QUIRE_HAS_avx512)
      {"avx512", has_avx512(cpu_features()), false, avx512::table},
#endif
#if defined(QUIRE_HAS_avx512_vnni)
      {"avx512_vnni", has_avx512_vnni(cpu_features()), false, avx512_vnni::table},
#endif
#if defined(QUIRE_HAS_amx)
      {"amx", has_amx(cpu_features()), false, amx::table},
#endif
#if defined(QUIRE_HAS_amx_emulated)
      {"amx_emulated", has_avx512_vnni(cpu_features()), true, amx_emulated::table},
#endif
  };
  count = static_cast<int>(sizeof entries / sizeof entries[0]);
  return entries;
}

}  // namespace quire

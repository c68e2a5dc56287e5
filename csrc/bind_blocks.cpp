// Binding of the copies between KV blocks and host memory.
#include "bind.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "cpu/block_copy.h"

namespace nb = nanobind;

namespace quire {

namespace {

std::vector<uint64_t> copy(Pool& pool,
                           const std::vector<std::tuple<uintptr_t, int64_t, int64_t>>& tensors,
                           const std::vector<std::tuple<int64_t, uintptr_t, uint64_t>>& wanted,
                           bool load) {
  std::vector<BlockPart> parts;
  for (const auto& [data, bytes, stride] : tensors) {
    parts.push_back({pointer<uint8_t>(data), bytes, stride});
  }
  std::vector<BlockMove> moves;
  for (const auto& [block, row, seed] : wanted) {
    moves.push_back({block, pointer<uint8_t>(row), seed, 0});
  }
  {
    const nb::gil_scoped_release unlocked;
    copy_blocks(pool, parts, moves, load);
  }
  std::vector<uint64_t> checksums;
  for (const BlockMove& move : moves) checksums.push_back(move.checksum);
  return checksums;
}

}  // namespace

void bind_blocks(nb::module_& m) { m.def("copy_blocks", &copy); }

}  // namespace quire

#include "block_copy.h"

#include "checksum.h"

namespace quire {

namespace {

struct Job {
  const std::vector<BlockPart>& parts;
  std::vector<BlockMove>& moves;
  bool load;
};

void copy_block(void* context, int64_t task) {
  const Job& job = *static_cast<const Job*>(context);
  BlockMove& move = job.moves[static_cast<size_t>(task)];
  Checksum sum(move.seed);
  uint8_t* row = move.row;
  for (const BlockPart& part : job.parts) {
    uint8_t* const block = part.data + move.block * part.stride;
    sum.add<true>(job.load ? row : block, part.bytes, job.load ? block : row);
    row += part.bytes;
  }
  move.checksum = sum.value();
}

}  // namespace

void copy_blocks(Pool& pool, const std::vector<BlockPart>& parts, std::vector<BlockMove>& moves,
                 bool load) {
  Job job{parts, moves, load};
  pool.run(static_cast<int64_t>(moves.size()), copy_block, &job, Deal::kShares);
}

}  // namespace quire

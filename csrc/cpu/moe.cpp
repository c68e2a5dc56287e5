#include "moe.h"

#include <string.h>

#include "linear.h"

namespace quire {

namespace {

int64_t item_bytes(DType dtype) { return dtype == kFloat32 ? 4 : 2; }

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// What lies in `memory`; a place is a row with one of its experts, sorted by expert.
struct Workspace {
  int64_t places, hidden, width;
  int64_t x_bytes, h_bytes, z_bytes, place_bytes;

  explicit Workspace(const Moe& moe)
      : places(moe.rows * moe.top_k),
        hidden(moe.gate_up.front()->k()),
        width(moe.down.front()->k()),
        x_bytes(aligned(places * hidden * item_bytes(moe.dtype))),
        h_bytes(aligned(places * width * item_bytes(moe.dtype))),
        z_bytes(aligned(places * hidden * 4)),
        place_bytes(aligned(places * 8)) {}

  int64_t bytes() const { return x_bytes + h_bytes + z_bytes + place_bytes; }
};

void multiply_by(const Kernels& kernels, Pool& pool, const PackedWeight& weight, void* y,
                 DType y_dtype, const void* x, DType x_dtype, int64_t rows) {
  const Linear linear =
      start(kernels, pool, weight, y, y_dtype, weight.columns(), x, x_dtype, weight.k(), rows);
  prepare(pool, linear);
  multiply(pool, linear);
}

}  // namespace

int64_t moe_bytes(const Moe& moe) { return Workspace(moe).bytes(); }

void run_moe(const Kernels& kernels, Pool& pool, const Moe& moe) {
  const Workspace w(moe);
  const int64_t size = item_bytes(moe.dtype);
  uint8_t* x = static_cast<uint8_t*>(moe.memory);
  uint8_t* h = x + w.x_bytes;
  float* z = reinterpret_cast<float*>(h + w.h_bytes);
  int64_t* place = reinterpret_cast<int64_t*>(h + w.h_bytes + w.z_bytes);

  std::vector<int64_t> first(moe.gate_up.size() + 1, 0);
  for (int64_t i = 0; i < w.places; ++i) ++first[static_cast<size_t>(moe.experts[i]) + 1];
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  std::vector<int64_t> next(first.begin(), first.end() - 1);
  for (int64_t i = 0; i < w.places; ++i) {
    place[i] = next[static_cast<size_t>(moe.experts[i])]++;
  }

  struct Gather {
    const Moe& moe;
    const int64_t* place;
    uint8_t* x;
    int64_t row_bytes;
  } gather = {moe, place, x, w.hidden * size};
  pool.run(
      moe.rows,
      [](void* context, int64_t row) {
        const Gather& g = *static_cast<const Gather*>(context);
        const uint8_t* from = static_cast<const uint8_t*>(g.moe.x) + row * g.row_bytes;
        for (int64_t i = row * g.moe.top_k; i < (row + 1) * g.moe.top_k; ++i) {
          memcpy(g.x + g.place[i] * g.row_bytes, from, static_cast<size_t>(g.row_bytes));
        }
      },
      &gather);

  for (size_t e = 0; e + 1 < first.size(); ++e) {
    const int64_t begin = first[e], rows = first[e + 1] - begin;
    if (rows == 0) continue;
    uint8_t* between = h + begin * w.width * size;
    multiply_by(kernels, pool, *moe.gate_up[e], between, moe.dtype, x + begin * w.hidden * size,
                moe.dtype, rows);
    multiply_by(kernels, pool, *moe.down[e], z + begin * w.hidden, kFloat32, between, moe.dtype,
                rows);
  }

  struct Mix {
    void (*kernel)(const MixArgs&, int64_t);
    MixArgs args;
  } mix = {kernels.mix[moe.dtype], {moe.y, z, place, moe.weights, moe.top_k, w.hidden}};
  pool.run(
      moe.rows,
      [](void* context, int64_t row) {
        const Mix& m = *static_cast<const Mix*>(context);
        m.kernel(m.args, row);
      },
      &mix);
}

}  // namespace quire

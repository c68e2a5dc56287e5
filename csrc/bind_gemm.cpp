// Binding of the pool and packed weights.
#include "bind.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <errno.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/packed_file.h"
#include "cpu/weight_stream.h"

namespace nb = nanobind;

namespace quire {

namespace {

// parts: address, rows and stride of each.
void make_weight(PackedWeight* self, const Kernels& kernels, Pool& pool, int kind, int epilogue,
                 const std::vector<std::tuple<uintptr_t, int64_t, int64_t>>& parts, int dtype,
                 int64_t k, uintptr_t bias, int64_t group, int64_t experts) {
  if (kind < 0 || kind >= kWeightKindCount) throw std::invalid_argument("unknown weight kind");
  if (epilogue < 0 || epilogue >= kEpilogueCount) throw std::invalid_argument("unknown epilogue");
  const DType type = dtype_of(dtype);
  const nb::gil_scoped_release unlocked;
  std::vector<WeightPart> rows;
  for (const auto& [data, count, stride] : parts) {
    rows.push_back({pointer<const void>(data), count, stride});
  }
  new (self) PackedWeight(pool, static_cast<WeightKind>(kind), static_cast<Epilogue>(epilogue),
                          rows, type, k, pointer<const float>(bias),
                          {group, kernels.quantize_codes}, experts);
}

// kind, epilogue, n, k, group, what a group has apart from its scale, zero, whether there are a permutation
// and a bias, the input's scale, and experts.
using Shape = std::tuple<int, int, int64_t, int64_t, int64_t, int, int, bool, bool, float, int64_t>;

Shape shape_of(const PackedWeight& weight) {
  const PackedShape& s = weight.shape();
  return {s.kind, s.epilogue, s.n,    s.k,           s.group,  s.second,
          s.zero, s.permuted, s.bias, s.input_scale, s.experts};
}

PackedShape checked_shape(const Shape& shape) {
  const auto [kind, epilogue, n, k, group, second, zero, permuted, bias, input_scale, experts] = shape;
  if (kind < 0 || kind >= kWeightKindCount) throw std::invalid_argument("unknown weight kind");
  if (epilogue < 0 || epilogue >= kEpilogueCount) throw std::invalid_argument("unknown epilogue");
  if (second < 0 || second >= kSecondCount) throw std::invalid_argument("unknown form of groups");
  return {static_cast<WeightKind>(kind), static_cast<Epilogue>(epilogue), n, k, group,
          static_cast<Second>(second), zero, permuted, bias, input_scale, experts};
}

// Addresses of what QuantizedSource has.
using Source = std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>;

void make_quantized_weight(PackedWeight* self, Pool& pool, const Shape& shape, const Source& source,
                           uintptr_t bias) {
  const PackedShape checked = checked_shape(shape);
  const nb::gil_scoped_release unlocked;
  const auto [codes, scale, second, codebook, permutation] = source;
  new (self) PackedWeight(pool, checked,
                          {pointer<const void>(codes), pointer<const float>(scale),
                           pointer<const float>(second), pointer<const uint8_t>(codebook),
                           pointer<const int32_t>(permutation)},
                          pointer<const float>(bias));
}

int64_t streamed_bytes(PackedWeight& weight) {
  return weight.memory().streamed() ? weight.memory().bytes() : 0;
}

void make_zero_weight(PackedWeight* self, const Shape& shape) {
  new (self) PackedWeight(checked_shape(shape));
}

// tuned: most rows of x, and then the fields of GemmTuning.
void tune(PackedWeight& weight,
          const std::vector<std::pair<int64_t, std::array<int64_t, 6>>>& tuned) {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  std::vector<PackedWeight::Tuned> all;
  for (const auto& [rows, f] : tuned) {
    if (!all.empty() && rows <= all.back().rows) throw std::invalid_argument("rows must ascend");
    const GemmTuning t = {f[0], f[1], f[2], f[3], f[4], f[5]};
    const auto fits = [](int64_t value, int64_t least, int64_t most) {
      return value >= least && value <= most;
    };
    if (!fits(t.pass_rows, 0, kMostBytes) || !fits(t.chunk_bytes, 0, kMostBytes) ||
        !fits(t.group_bytes, 0, kMostBytes) || !fits(t.thread_tasks, 0, kMostThreadTasks) ||
        !fits(t.ahead_bytes, -1, 1 << 24) || !fits(t.vector_rows, -1, kMostBytes)) {
      throw std::invalid_argument("no such tuning of a product");
    }
    all.push_back({rows, t});
  }
  weight.tune(std::move(all));
}

// Without the GIL; system errors become OSError.
template <typename Transfer>
uint64_t unlocked(const Transfer& transfer) {
  const nb::gil_scoped_release unlocked;
  try {
    return transfer();
  } catch (const std::system_error& error) {
    const nb::gil_scoped_acquire locked;
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

uint64_t write_file(int fd, int64_t offset, const std::vector<PackedWeight*>& weights) {
  return unlocked([&] { return write_packed(fd, offset, weights); });
}

uint64_t map_file(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights,
                  bool streamed) {
  return unlocked([&] { return map_packed(pool, fd, offset, weights, streamed); });
}

// Read ahead of the products, in this order, from now on.
std::shared_ptr<WeightStream> stream_packed(const std::vector<PackedWeight*>& weights,
                                            int64_t ahead_bytes, bool give_back) {
  std::vector<WeightStream::Stretch> stretches;
  for (PackedWeight* weight : weights) {
    if (!weight->memory().streamed()) throw std::invalid_argument("a streamed weight is in a file");
    stretches.push_back({weight->memory().data(), weight->memory().bytes()});
  }
  auto stream = std::make_shared<WeightStream>(std::move(stretches), ahead_bytes, give_back);
  int64_t index = 0;
  for (PackedWeight* weight : weights) weight->memory().attach(stream, index++);
  return stream;
}

void unpack(const PackedWeight& weight, uintptr_t out) {
  const nb::gil_scoped_release unlocked;
  weight.unpack(pointer<float>(out));
}

// counts[task] += 1 for every task: what the test of the pool can see from outside.
void count_tasks(Pool& pool, uintptr_t counts, int64_t tasks, bool in_shares) {
  const nb::gil_scoped_release unlocked;
  const auto body = [](void* context, int64_t task) {
    __atomic_fetch_add(static_cast<int64_t*>(context) + task, 1, __ATOMIC_RELAXED);
  };
  pool.run(tasks, body, pointer(counts), in_shares ? Deal::kShares : Deal::kQueue);
}

}  // namespace

void bind_gemm(nb::module_& m) {
  m.attr("WEIGHT_F32") = static_cast<int>(kWeightF32);
  m.attr("WEIGHT_F16") = static_cast<int>(kWeightF16);
  m.attr("WEIGHT_BF16") = static_cast<int>(kWeightBF16);
  m.attr("WEIGHT_S8") = static_cast<int>(kWeightS8);
  m.attr("WEIGHT_S8_A16") = static_cast<int>(kWeightS8A16);
  m.attr("WEIGHT_U2") = static_cast<int>(kWeightU2);
  m.attr("WEIGHT_U3") = static_cast<int>(kWeightU3);
  m.attr("WEIGHT_U4") = static_cast<int>(kWeightU4);
  m.attr("WEIGHT_U4_BOOK") = static_cast<int>(kWeightU4Book);
  m.attr("WEIGHT_U5") = static_cast<int>(kWeightU5);
  m.attr("WEIGHT_U6") = static_cast<int>(kWeightU6);
  m.attr("WEIGHT_U8") = static_cast<int>(kWeightU8);
  m.attr("WEIGHT_F8_E4M3") = static_cast<int>(kWeightF8E4M3);
  m.attr("WEIGHT_F8_E5M2") = static_cast<int>(kWeightF8E5M2);
  m.attr("NO_SECOND") = static_cast<int>(kNoSecond);
  m.attr("ZERO_POINTS") = static_cast<int>(kZeroPoints);
  m.attr("OFFSETS") = static_cast<int>(kOffsets);
  nb::dict epilogues;
  epilogues["none"] = static_cast<int>(kNoEpilogue);
#define QUIRE_NAME(code, name, F, gated) epilogues[#name] = static_cast<int>(code);
  QUIRE_ACTIVATIONS(QUIRE_NAME)
  m.attr("EPILOGUES") = epilogues;

  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>())
      .def_prop_ro("threads", &Pool::threads)
      .def_prop_ro("regions", &Pool::regions)
      .def("count_tasks", &count_tasks);

  nb::class_<PackedWeight>(m, "PackedWeight")
      .def("__init__", &make_weight)
      .def("__init__", &make_quantized_weight)
      .def("__init__", &make_zero_weight)
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("nbytes", &PackedWeight::nbytes)
      .def_prop_ro("streamed_bytes", &streamed_bytes)
      .def("tune", &tune)
      .def("unpack", &unpack);

  nb::class_<WeightStream>(m, "WeightStream")
      .def_prop_ro("read_bytes", &WeightStream::read_bytes)
      .def_prop_ro("given_back_bytes", &WeightStream::given_back_bytes);

  m.def("write_packed", &write_file);
  m.def("map_packed", &map_file);
  m.def("packed_end", &packed_end);
  m.def("stream_packed", &stream_packed);
}

}  // namespace quire

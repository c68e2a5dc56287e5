#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace quire {

namespace {

constexpr double kPi = 3.14159265358979323846;

double sinc(double x) { return x == 0.0 ? 1.0 : std::sin(x * kPi) / (x * kPi); }

double support(ResizeFilter filter) {
  return filter == ResizeFilter::kLanczos ? 3.0 : filter == ResizeFilter::kBicubic ? 2.0 : 1.0;
}

double weight(ResizeFilter filter, double x) {
  constexpr double a = -0.5;
  switch (filter) {
    case ResizeFilter::kLanczos:
      return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
    case ResizeFilter::kBicubic:
      x = std::fabs(x);
      if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
      return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
    case ResizeFilter::kBilinear:
      break;
  }
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

// Along one axis: which pixels make each new one, and with which weights. These are rounded as
// Pillow's, which computes in the same order.
struct Axis {
  std::vector<int64_t> first, taps;
  std::vector<int32_t> weights;
  int64_t most;

  Axis(int64_t size, int64_t wanted, ResizeFilter filter)
      : first(static_cast<size_t>(wanted)), taps(static_cast<size_t>(wanted)) {
    const double scale = static_cast<double>(size) / static_cast<double>(wanted);
    const double wide = std::max(scale, 1.0);
    const double reach = support(filter) * wide;
    most = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
    weights.resize(static_cast<size_t>(wanted * most));
    std::vector<double> exact(static_cast<size_t>(most));
    for (int64_t i = 0; i < wanted; ++i) {
      const double center = (static_cast<double>(i) + 0.5) * scale;
      const int64_t begin = std::max<int64_t>(0, static_cast<int64_t>(center - reach + 0.5));
      const int64_t end = std::min(size, static_cast<int64_t>(center + reach + 0.5));
      double sum = 0.0;
      for (int64_t j = begin; j < end; ++j) {
        const double x = (static_cast<double>(j) - center + 0.5) * (1.0 / wide);
        sum += exact[static_cast<size_t>(j - begin)] = weight(filter, x);
      }
      for (int64_t j = begin; j < end; ++j) {
        double w = exact[static_cast<size_t>(j - begin)];
        if (sum != 0.0) w /= sum;
        w *= 1 << kResizeBits;
        weights[static_cast<size_t>(i * most + j - begin)] = static_cast<int32_t>(w < 0 ? w - 0.5 : w + 0.5);
      }
      first[static_cast<size_t>(i)] = begin;
      taps[static_cast<size_t>(i)] = end - begin;
    }
  }

  const int32_t* at(int64_t i) const { return weights.data() + i * most; }
};

// Resizes each line to `width` pixels.
void resize_lines(const ResizeKernels& kernels, const uint8_t* in, Size size, ResizeFilter filter,
                  uint8_t* out, int64_t width) {
  const Axis axis(size.width, width, filter);
  std::vector<int32_t> wide(static_cast<size_t>(4 * kResizeRows * size.width));
  for (int64_t y = 0; y < size.height; y += kResizeRows) {
    const uint8_t* from[kResizeRows];
    uint8_t* to[kResizeRows];
    for (int64_t row = 0; row < kResizeRows; ++row) {
      const int64_t line = std::min(y + row, size.height - 1);  // the last one may be computed again
      from[row] = in + line * 3 * size.width;
      to[row] = out + line * 3 * width;
    }
    kernels.widen(from, size.width, wide.data());
    for (int64_t x = 0; x < width; ++x) {
      const auto i = static_cast<size_t>(x);
      kernels.pixel(wide.data() + 4 * kResizeRows * axis.first[i], axis.at(x), axis.taps[i], to);
      for (uint8_t*& each : to) each += 3;
    }
  }
}

// Resizes each column to `height` pixels.
void resize_columns(const ResizeKernels& kernels, const uint8_t* in, Size size, ResizeFilter filter,
                    uint8_t* out, int64_t height) {
  const Axis axis(size.height, height, filter);
  const int64_t stride = 3 * size.width;
  for (int64_t y = 0; y < height; ++y) {
    const auto i = static_cast<size_t>(y);
    kernels.lines(in + axis.first[i] * stride, stride, axis.at(y), axis.taps[i], out + y * stride, stride);
  }
}

}  // namespace

void resize(const Kernels& kernels, const uint8_t* in, Size size, ResizeFilter filter, uint8_t* out,
            Size wanted) {
  const ResizeKernels& k = *kernels.resize;
  const bool lines = size.width != wanted.width, columns = size.height != wanted.height;
  if (!lines && !columns) {
    std::memcpy(out, in, static_cast<size_t>(3 * size.width * size.height));
  } else if (!columns) {
    resize_lines(k, in, size, filter, out, wanted.width);
  } else if (!lines) {
    resize_columns(k, in, size, filter, out, wanted.height);
  } else {
    // Rounding between the two makes their order matter. This is Pillow 13's.
    const bool columns_first = wanted.height < size.height &&
                               2 * (size.width - wanted.width) < size.height - wanted.height;
    const Size half = columns_first ? Size{size.width, wanted.height} : Size{wanted.width, size.height};
    const std::unique_ptr<uint8_t[]> between(new uint8_t[static_cast<size_t>(3 * half.width * half.height)]);
    if (columns_first) {
      resize_columns(k, in, size, filter, between.get(), wanted.height);
      resize_lines(k, between.get(), half, filter, out, wanted.width);
    } else {
      resize_lines(k, in, size, filter, between.get(), wanted.width);
      resize_columns(k, between.get(), half, filter, out, wanted.height);
    }
  }
}

}  // namespace quire

// Resizing of images in bytes, with the pixels of Pillow.
#pragma once

#include <cstdint>

#include "../cpu/kernels.h"

namespace quire {

enum class ResizeFilter { kLanczos = 1, kBilinear = 2, kBicubic = 3 };  // Pillow's numbers

struct Size {
  int64_t width, height;
};

// Writes the image `in` of `size`, lines of pixels of three bytes, to `out` in the size `wanted`.
void resize(const Kernels& kernels, const uint8_t* in, Size size, ResizeFilter filter, uint8_t* out,
            Size wanted);

}  // namespace quire

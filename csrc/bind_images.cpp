// Binding of the resizing of images. The GIL is released meanwhile.
#include "bind.h"

#include "bytes.h"
#include "images/resize.h"

namespace nb = nanobind;

namespace quire {

namespace {

nb::bytes resized(const Kernels& kernels, nb::handle pixels, Size size, int filter, Size wanted) {
  const Bytes bytes(pixels);
  constexpr int64_t kMost = 1 << 28;
  for (const Size& each : {size, wanted}) {
    if (each.width < 1 || each.height < 1 || each.width > kMost || each.height > kMost / each.width) {
      throw std::invalid_argument("an image needs pixels, and fewer than 2^28");
    }
  }
  if (static_cast<int64_t>(bytes.view().size()) != 3 * size.width * size.height) {
    throw std::invalid_argument("the pixels have another size");
  }
  if (filter < 1 || filter > 3) throw std::invalid_argument("unknown filter");
  const auto length = static_cast<Py_ssize_t>(3 * wanted.width * wanted.height);
  nb::bytes found = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, length));
  if (!found.is_valid()) throw nb::python_error();
  auto* const out = reinterpret_cast<uint8_t*>(PyBytes_AsString(found.ptr()));
  const nb::gil_scoped_release unlocked;
  resize(kernels, reinterpret_cast<const uint8_t*>(bytes.view().data()), size,
         static_cast<ResizeFilter>(filter), out, wanted);
  return found;
}

}  // namespace

void bind_images(nb::module_& m) {
  m.def(
      "resize",
      [](const Kernels& kernels, nb::handle pixels, int64_t width, int64_t height, int filter,
         int64_t new_width, int64_t new_height) {
        return resized(kernels, pixels, {width, height}, filter, {new_width, new_height});
      });
}

}  // namespace quire

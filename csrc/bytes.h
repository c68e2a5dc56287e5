// Buffers of Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace quire {

// The bytes of any object with a buffer, while this lives.
class Bytes {
 public:
  explicit Bytes(nanobind::handle owner) {
    if (PyObject_GetBuffer(owner.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  ~Bytes() { PyBuffer_Release(&buffer_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  std::string_view view() const {
    return {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
};

}  // namespace quire

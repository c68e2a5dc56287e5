// Binding of a vocabulary. The GIL is released while it is read, and while words are encoded.
#include "bind.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "bytes.h"
#include "text/byte_pairs.h"

namespace nb = nanobind;

namespace quire {

namespace {

std::string_view utf8(nb::handle text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

void make(BytePairs* self, nb::handle vocabulary, nb::handle merges, const std::string& unknown,
          bool fuses_unknown, bool falls_back_to_bytes, bool takes_whole_words) {
  const Bytes tokens(vocabulary), pairs(merges);
  const nb::gil_scoped_release unlocked;
  new (self) BytePairs(tokens.view(), pairs.view(),
                       {unknown, fuses_unknown, falls_back_to_bytes, takes_whole_words});
}

std::vector<int32_t> encode(const BytePairs& pairs, nb::list words, const std::vector<int64_t>& kinds,
                            const std::vector<int32_t>& added) {
  if (words.size() != kinds.size()) throw std::invalid_argument("each word has a kind");
  std::vector<std::string_view> views;  // `words` owns what they show
  views.reserve(kinds.size());
  for (nb::handle word : words) views.push_back(utf8(word));
  const nb::gil_scoped_release unlocked;
  std::vector<int32_t> ids;
  BytePairs::Scratch scratch;
  for (size_t i = 0; i < views.size(); ++i) {
    if (kinds[i] == 0) {
      pairs.encode(views[i], scratch, ids);
    } else {
      ids.push_back(added.at(static_cast<size_t>(kinds[i])));
    }
  }
  return ids;
}

nb::object token(const BytePairs& pairs, int64_t id) {
  std::string_view found;
  return pairs.find(id, found) ? nb::str(found.data(), found.size()) : nb::object(nb::none());
}

nb::object id(const BytePairs& pairs, nb::str token) {
  const int32_t found = pairs.id(utf8(token));
  return found < 0 ? nb::object(nb::none()) : nb::object(nb::int_(found));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<BytePairs>(m, "BytePairs")
      .def("__init__", &make)
      .def("encode", &encode)
      .def("token", &token)
      .def("id", &id)
      .def_prop_ro("size", &BytePairs::size)
      .def_prop_ro("max_bytes", &BytePairs::max_bytes)
      .def_prop_ro("max_chars", &BytePairs::max_chars);
}

}  // namespace quire

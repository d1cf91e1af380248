// What Python gives and takes, as C++ has it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dgc/state.h"
#include "session.h"

namespace dgc::python {

/// Tensor, address of its first float, number of elements.
using Arrays = std::vector<std::tuple<std::size_t, std::uintptr_t, std::size_t>>;

inline std::vector<Array> arrays_of(const Arrays& list) {
  std::vector<Array> arrays;
  arrays.reserve(list.size());
  for (const auto& [tensor, address, elements] : list) {
    arrays.push_back({.tensor = tensor, .address = address, .elements = elements});
  }
  return arrays;
}

inline std::vector<Bytes> bytes_of(
    const std::vector<std::pair<std::uintptr_t, std::size_t>>& list) {
  std::vector<Bytes> all;
  all.reserve(list.size());
  for (const auto& [address, size] : list) all.push_back({.address = address, .size = size});
  return all;
}

/// Of each tensor: name, shape, and whether it is sent whole.
using Specs = std::vector<std::tuple<std::string, std::vector<std::int64_t>, bool>>;

inline std::vector<TensorSpec> specs_of(const Specs& given) {
  std::vector<TensorSpec> specs;
  specs.reserve(given.size());
  for (const auto& [name, shape, dense] : given) specs.push_back({name, shape, dense});
  return specs;
}

/// Floats as Python takes them: address and number.
inline std::pair<std::uintptr_t, std::size_t> place_of(std::span<float> values) {
  return {reinterpret_cast<std::uintptr_t>(values.data()), values.size()};
}

/// Memory of Python's that can be written to, of whole items.
template <typename Item>
pybind11::bytearray bytearray_of(std::span<const Item> items) {
  return {reinterpret_cast<const char*>(items.data()), items.size_bytes()};
}

/// A text that may have come from another rank, and been cut: what is no UTF-8 in it is replaced.
inline pybind11::str text_of(std::string_view text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

}  // namespace dgc::python

// A message of what a device has made: of most tensors the sections of a frame, coded there and
// laid into the message as they are; of the others the entries, which are coded here.
//
// Sections are not checked here. Receivers check every message, and so does the rank that sends it.
#include "bind_packed.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "convert.h"
#include "dgc/error.h"
#include "dgc/wire.h"
#include "session.h"
#include "wire/bits.h"
#include "wire/frame.h"
#include "wire/values.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

/// As Python has it: tensor, elements, entries, value type, coding, address, bytes, address of what
/// the entries decode to. That is 0 for sections: those of a frame, values first, then positions.
/// Otherwise at the address are entries, positions as 32 bits (unless all elements are there) and
/// then values as floats.
using Packed = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::string, std::string,
                          std::uintptr_t, std::size_t, std::uintptr_t>;

template <typename Item>
std::vector<Item> items_at(const std::byte* bytes, std::size_t count) {
  std::vector<Item> items(count);  // bytes need not be aligned
  if (count > 0) std::memcpy(items.data(), bytes, count * sizeof(Item));
  return items;
}

[[noreturn]] void wrong_size(const FrameInfo& frame, std::size_t bytes) {
  throw Error(ErrorCode::internal, "encode", fmt::format("tensor {}", frame.tensor),
              fmt::format("{} bytes do not hold {} entries", bytes, frame.entries));
}

void add_sections(MessageWriter& writer, FrameInfo frame, std::span<const std::byte> sections) {
  frame.value_bytes = wire::value_bytes(frame.value_type, frame.entries);
  if (sections.size() < frame.value_bytes) wrong_size(frame, sections.size());
  frame.index_bytes = sections.size() - frame.value_bytes;
  const std::uint64_t body = wire::body_bytes(frame);
  frame.bytes = wire::varint_size(static_cast<std::uint32_t>(body)) + body;
  const std::span<std::byte> room = writer.room();
  if (body > kMaxElements || frame.bytes > room.size()) {
    throw Error(
        ErrorCode::buffer_too_small, "encode", fmt::format("tensor {}", frame.tensor),
        fmt::format("the frame takes {} bytes, the buffer has {}", frame.bytes, room.size()));
  }
  std::byte* const begin = wire::put_header(frame, room.data());
  std::memcpy(begin, sections.data(), sections.size());
  writer.settle(frame.tensor, room.first(frame.bytes));
}

/// Returns how many are sent: what would decode to zero is not.
std::size_t add_entries(MessageWriter& writer, const FrameInfo& frame,
                        std::span<const std::byte> entries, std::span<float> decoded) {
  const bool whole = frame.entries == frame.elements;
  const std::size_t positions = whole ? 0 : frame.entries * sizeof(std::uint32_t);
  if (entries.size() != positions + frame.entries * sizeof(float)) {
    wrong_size(frame, entries.size());
  }
  const auto indices = items_at<std::uint32_t>(entries.data(), whole ? 0 : frame.entries);
  const auto values = items_at<float>(entries.data() + positions, frame.entries);
  writer.add({.tensor = frame.tensor,
              .elements = frame.elements,
              .indices = indices,
              .values = values,
              .value_type = frame.value_type,
              .coding = frame.coding},
             decoded);
  return decoded.size() -
         static_cast<std::size_t>(std::count(decoded.begin(), decoded.end(), 0.0f));
}

/// The size of the message, and how many entries of each frame are sent.
std::pair<std::size_t, std::vector<std::size_t>> pack(const std::vector<Packed>& frames,
                                                      const Notice& notice, std::uint64_t step,
                                                      std::uint32_t schema, std::uint16_t sender,
                                                      std::uintptr_t out, std::size_t room) {
  const Bytes buffer{.address = out, .size = room};
  MessageWriter writer(buffer.span(),
                       {.step = step, .schema = schema, .sender = sender, .notice = notice});
  std::vector<std::size_t> sent;
  for (const auto& [tensor, elements, entries, values, coding, address, size, decoded] : frames) {
    const FrameInfo frame{.tensor = tensor,
                          .elements = elements,
                          .entries = entries,
                          .value_type = parse_value_type(values),
                          .coding = parse_index_coding(coding)};
    const auto given = memory_at<const std::byte>(address, size);
    if (decoded == 0) {
      add_sections(writer, frame, given);
      sent.push_back(entries);
    } else {
      sent.push_back(add_entries(writer, frame, given, memory_at<float>(decoded, entries)));
    }
  }
  return {writer.finish(), sent};
}

}  // namespace

void bind_packed(py::module_& m) {
  m.def("pack", &pack, "frames"_a, "notice"_a, "step"_a, "schema"_a, "sender"_a, "out"_a, "room"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def(
      "value_bytes",
      [](const std::string& values, std::size_t entries) {
        return wire::value_bytes(parse_value_type(values), entries);
      },
      "values"_a, "entries"_a);
}

}  // namespace dgc::python

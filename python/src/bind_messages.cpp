#include "bind_messages.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>

#include "convert.h"
#include "dgc/error.h"
#include "dgc/wire.h"
#include "session.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

/// A view of an object's bytes, which it keeps alive. Throws Error unless they lie in one piece.
class Contents {
 public:
  explicit Contents(const py::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) == 0) return;
    PyErr_Clear();
    throw Error(
        ErrorCode::invalid_argument, "inspect_message", "message",
        fmt::format("is a {}, but has to be bytes in one piece", Py_TYPE(object.ptr())->tp_name),
        "for example inspect_message(open(file, 'rb').read())");
  }
  ~Contents() { PyBuffer_Release(&view_); }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

py::object dict_of(const std::optional<Notice>& notice) {
  if (!notice) return py::none();
  py::object failure = py::none();
  if (notice->failure) {
    failure = py::dict("code"_a = error_name(notice->failure->code),
                       "text"_a = text_of(notice->failure->text));
  }
  return py::dict("bucket"_a = notice->bucket, "present"_a = notice->present,
                  "stop"_a = notice->stop, "nonfinite"_a = notice->nonfinite,
                  "parameters"_a = notice->parameters, "failure"_a = failure);
}

py::dict dict_of(const FrameInfo& frame) {
  return py::dict("tensor"_a = frame.tensor, "elements"_a = frame.elements,
                  "entries"_a = frame.entries, "values"_a = name_of(frame.value_type),
                  "indices"_a = name_of(frame.coding), "bytes"_a = frame.bytes,
                  "value_bytes"_a = frame.value_bytes, "index_bytes"_a = frame.index_bytes);
}

py::dict inspect(const py::object& message) {
  const Contents contents(message);
  std::optional<CheckedMessage> checked;
  {
    const py::gil_scoped_release unlocked;
    checked.emplace(contents.bytes());
  }
  py::list frames;
  for (const FrameInfo& frame : checked->frames()) frames.append(dict_of(frame));
  const MessageHeader& header = checked->header();
  return py::dict("step"_a = header.step, "schema"_a = header.schema, "sender"_a = header.sender,
                  "bytes"_a = contents.bytes().size(), "notice"_a = dict_of(header.notice),
                  "frames"_a = frames);
}

/// (tensor, elements, positions as int64, values as float32) of each frame of a rank's message.
py::list entries_of(const Parcels& parcels, std::size_t rank) {
  std::vector<Entries> all;
  std::vector<std::vector<std::int64_t>> positions;
  {
    const py::gil_scoped_release unlocked;
    all = decode_entries(parcels.of(rank), std::numeric_limits<std::uint64_t>::max());
    for (const Entries& frame : all) {
      positions.emplace_back(frame.indices.begin(), frame.indices.end());
    }
  }
  py::list frames;
  for (std::size_t i = 0; i < all.size(); ++i) {
    frames.append(py::make_tuple(all[i].tensor, all[i].elements,
                                 bytearray_of(std::span<const std::int64_t>(positions[i])),
                                 bytearray_of(std::span<const float>(all[i].values))));
  }
  return frames;
}

/// A frame to be: entries that were selected elsewhere. Without positions it is the whole tensor.
struct Selected {
  std::uint32_t tensor;
  std::uint64_t elements;
  std::uintptr_t indices;  // of int64, or 0
  std::uintptr_t values;
  std::uintptr_t decoded;
  std::size_t count;
  std::string value_type;
  std::string coding;
};

std::size_t encode(const std::vector<Selected>& frames, const MessageHeader& header,
                   const Bytes& out) {
  MessageWriter writer(out.span(), header);
  std::vector<std::uint32_t> indices;
  for (const Selected& frame : frames) {
    indices.clear();
    if (frame.indices != 0) {
      const auto given = memory_at<const std::int64_t>(frame.indices, frame.count);
      for (const std::int64_t index : given) indices.push_back(static_cast<std::uint32_t>(index));
    }
    const auto values = memory_at<const float>(frame.values, frame.count);
    const auto decoded = memory_at<float>(frame.decoded, frame.count);
    writer.add({.tensor = frame.tensor,
                .elements = frame.elements,
                .indices = indices,
                .values = values,
                .value_type = parse_value_type(frame.value_type),
                .coding = parse_index_coding(frame.coding)},
               decoded);
  }
  return writer.finish();
}

// tests/python/test_docs.py runs what stands after >>>.
constexpr const char* kInspectMessage = R"(What is in a message of dgc, which is checked completely.

A message is what a worker sends of a bucket; docs/format.md specifies it. Returns its step, sender,
schema and size in bytes, its notice, and for each frame the tensor, its elements, how many entries
are sent, and how. Raises :class:`dgc.Error` if anything in it is wrong. The shortest message,
without notice and frames:

>>> message = bytes.fromhex(
...     "4447434d03000100000000000000000007000000000000002800000000000000be193486e32a8ec3")
>>> dgc.inspect_message(message)
{'step': 7, 'schema': 0, 'sender': 1, 'bytes': 40, 'notice': None, 'frames': []}
>>> dgc.inspect_message(message[:-1])
Traceback (most recent call last):
dgc.Error: ...
)";

void bind_notice(py::module_& m) {
  using Failure = std::pair<std::string, std::string>;
  py::class_<Notice>(m, "Notice")
      .def(py::init([](std::uint32_t bucket, std::vector<bool> present, bool nonfinite,
                       std::optional<std::uint64_t> parameters,
                       const std::optional<Failure>& failure) {
             Notice notice{.bucket = bucket,
                           .present = std::move(present),
                           .nonfinite = nonfinite,
                           .parameters = parameters};
             if (failure) {
               const auto code = error_code_named(failure->first);
               notice.failure = {.code = code.value_or(ErrorCode::internal),
                                 .text = failure->second};
             }
             return notice;
           }),
           "bucket"_a, "present"_a, "nonfinite"_a = false, "parameters"_a = py::none(),
           "failure"_a = py::none())
      .def_readonly("bucket", &Notice::bucket)
      .def_readonly("present", &Notice::present)
      .def_readonly("nonfinite", &Notice::nonfinite)
      .def_readonly("parameters", &Notice::parameters);
  m.def(
      "notice_message",
      [](const Notice& notice, std::uint64_t step, std::uint32_t schema, std::uint16_t sender,
         std::uintptr_t out, std::size_t room) {
        const Bytes bytes{.address = out, .size = room};
        const MessageHeader header{
            .step = step, .schema = schema, .sender = sender, .notice = notice};
        return MessageWriter(bytes.span(), header).finish();
      },
      "notice"_a, "step"_a, "schema"_a, "sender"_a, "out"_a, "room"_a);
}

void bind_parcels(py::module_& m) {
  py::class_<Parcels>(m, "Parcels")
      // `memory` holds the messages, as long as they are used.
      .def(py::init([](const std::vector<std::pair<std::uintptr_t, std::size_t>>& messages,
                       const py::object& /*memory*/, const Notice& mine, std::uint64_t step,
                       std::uint32_t schema,
                       const std::vector<std::pair<std::size_t, std::uint64_t>>& tensors) {
             const py::gil_scoped_release unlocked;
             std::vector<exchange::Expected> expected;
             for (const auto& [tensor, elements] : tensors) expected.push_back({tensor, elements});
             return Parcels(bytes_of(messages), mine, step, schema, expected);
           }),
           "messages"_a, "memory"_a, "mine"_a, "step"_a, "schema"_a, "tensors"_a,
           py::keep_alive<1, 3>())
      .def_property_readonly("merged", &Parcels::merged)
      .def(
          "add_to",
          [](const Parcels& parcels, const Arrays& targets, float alpha) {
            parcels.add_to(arrays_of(targets), alpha);
          },
          "targets"_a, "alpha"_a, Unlocked())
      .def(
          "add_mean_of_senders",
          [](const Parcels& parcels, const Arrays& targets, float alpha,
             const std::vector<bool>& whole) {
            parcels.add_mean_of_senders(arrays_of(targets), alpha, whole);
          },
          "targets"_a, "alpha"_a, "whole"_a, Unlocked())
      .def("entries", &entries_of, "rank"_a);
  m.def("parcel_bound", &exchange::parcel_bound, "tensors"_a, "contents"_a);
}

}  // namespace

void bind_messages(py::module_& m) {
  bind_notice(m);
  bind_parcels(m);
  m.def("inspect_message", &inspect, "message"_a, kInspectMessage);
  m.def(
      "encode",
      [](const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uintptr_t, std::uintptr_t,
                                      std::uintptr_t, std::size_t, std::string, std::string>>&
             frames,
         const Notice& notice, std::uint64_t step, std::uint32_t schema, std::uint16_t sender,
         std::uintptr_t out, std::size_t room) {
        std::vector<Selected> list;
        for (const auto& [tensor, elements, indices, values, decoded, count, type, coding] :
             frames) {
          list.push_back({tensor, elements, indices, values, decoded, count, type, coding});
        }
        return encode(list, {.step = step, .schema = schema, .sender = sender, .notice = notice},
                      {.address = out, .size = room});
      },
      "frames"_a, "notice"_a, "step"_a, "schema"_a, "sender"_a, "out"_a, "room"_a, Unlocked());
}

}  // namespace dgc::python

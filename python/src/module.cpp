// The extension dgc._core: libdgc for Python. Everything that may take long runs without the GIL.
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <xxhash.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/difference.h"
#include "bind_schedule.h"
#include "compress/option_table.h"
#include "compress/reshard.h"
#include "dgc/error.h"
#include "dgc/schedule.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "dgc/wire.h"
#include "session.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

std::vector<Array> arrays_of(
    const std::vector<std::tuple<std::size_t, std::uintptr_t, std::size_t>>& list) {
  std::vector<Array> arrays;
  arrays.reserve(list.size());
  for (const auto& [tensor, address, elements] : list) {
    arrays.push_back({.tensor = tensor, .address = address, .elements = elements});
  }
  return arrays;
}

std::vector<Bytes> bytes_of(const std::vector<std::pair<std::uintptr_t, std::size_t>>& list) {
  std::vector<Bytes> all;
  all.reserve(list.size());
  for (const auto& [address, size] : list) all.push_back({.address = address, .size = size});
  return all;
}

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

/// Memory of Python's that can be written to, of whole items.
template <typename Item>
py::bytearray bytearray_of(std::span<const Item> items) {
  return {reinterpret_cast<const char*>(items.data()), items.size_bytes()};
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
                  "bytes"_a = contents.bytes().size(), "frames"_a = frames);
}

/// (tensor, elements, positions as int64, values as float32) of each frame of a rank's message.
py::list decode(const Bytes& message, std::size_t rank, std::uint64_t step, std::uint32_t schema) {
  std::vector<Entries> all;
  std::vector<std::vector<std::int64_t>> positions;
  {
    const py::gil_scoped_release unlocked;
    const CheckedMessage checked(message.span());
    check_header(checked.header(), rank, step, schema);
    all = decode_entries(checked, std::numeric_limits<std::uint64_t>::max());
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
constexpr const char* kError = R"(What the library reports.

``str(error)`` is the whole text. ``code`` (a stable name), ``operation``, ``subject``, ``problem``
and ``hint`` are its parts:

>>> try:
...     dgc.Schedule(2.0)
... except dgc.Error as error:
...     print(error.code, error.subject, error.problem, sep="; ")
invalid_argument; ratio 2; is not in (0, 1]
)";

constexpr const char* kInspectMessage = R"(What is in a message of dgc, which is checked completely.

A message is what a worker sends of a bucket; docs/format.md specifies it. Returns its step, sender,
schema and size in bytes, and for each frame the tensor, its elements, how many entries are sent, and
how. Raises :class:`dgc.Error` if anything in it is wrong. The shortest message, without frames:

>>> message = bytes.fromhex(
...     "4447434d01000100000000000000000007000000000000002800000000000000a7fe307e40b4717a")
>>> dgc.inspect_message(message)
{'step': 7, 'schema': 0, 'sender': 1, 'bytes': 40, 'frames': []}
>>> dgc.inspect_message(message[:-1])
Traceback (most recent call last):
dgc.Error: ...
)";

/// Errors of the library become dgc.Error, with their parts as attributes.
void translate_errors(py::module_& m) {
  static PyObject* type = nullptr;
  type = PyErr_NewExceptionWithDoc("dgc.Error", kError, PyExc_RuntimeError, nullptr);
  m.add_object("Error", py::reinterpret_borrow<py::object>(type));
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      py::object instance = py::reinterpret_borrow<py::object>(type)(error.what());
      instance.attr("code") = error_name(error.code());
      instance.attr("operation") = error.operation();
      instance.attr("subject") = error.subject();
      instance.attr("problem") = error.problem();
      instance.attr("hint") = error.hint();
      PyErr_SetObject(type, instance.ptr());
    }
  });
}

/// For errors that begin in Python, or on another rank.
[[noreturn]] void fail(const std::string& code, const std::string& operation,
                       const std::string& subject, const std::string& problem,
                       const std::string& hint) {
  throw Error(error_code_named(code).value_or(ErrorCode::internal), operation, subject, problem,
              hint);
}

/// Numbers of all errors by name.
std::map<std::string_view, int> numbers_of_errors() {
  std::map<std::string_view, int> numbers;
  for (const ErrorCode code : error_codes()) numbers[error_name(code)] = static_cast<int>(code);
  return numbers;
}

/// As python/dgc/_options.py makes them: by the names of libdgc, with checked types.
CompressOptions options_of(const py::dict& given) {
  CompressOptions options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const std::string text = py::isinstance<py::bool_>(value)
                                 ? (value.cast<bool>() ? "true" : "false")
                                 : py::str(value).cast<std::string>();
    try {
      if (set_option(compress_options(), options, name, text)) continue;
    } catch (const Error& error) {
      throw Error(error.code(), "DGCState", fmt::format("{} '{}'", name, text), error.problem(),
                  error.hint());
    }
    throw Error(ErrorCode::invalid_argument, "DGCState", name, "is not an option of compression");
  }
  return options;
}

/// An array of the state as Python takes it: address and number of elements.
std::pair<std::uintptr_t, std::size_t> place_of(std::span<float> values) {
  return {reinterpret_cast<std::uintptr_t>(values.data()), values.size()};
}

void bind_session(py::module_& m) {
  using Arrays = std::vector<std::tuple<std::size_t, std::uintptr_t, std::size_t>>;
  py::class_<Session>(m, "Session")
      .def(py::init([](const std::vector<std::tuple<std::string, std::vector<std::int64_t>, bool>>&
                           tensors,
                       std::uint32_t rank, std::uint32_t workers, const Schedule& schedule,
                       std::uint32_t schema, const py::dict& options) {
             std::vector<TensorSpec> specs;
             for (const auto& [name, shape, dense] : tensors) specs.push_back({name, shape, dense});
             CompressOptions all = options_of(options);
             all.schedule = schedule;
             all.schema = schema;
             return std::make_unique<Session>(std::move(specs), rank, workers, all);
           }),
           py::kw_only(), "tensors"_a, "rank"_a, "workers"_a, "schedule"_a, "schema"_a, "options"_a)
      .def_property(
          "step", [](Session& s) { return s.state().step(); },
          [](Session& s, std::uint64_t step) { s.state().set_step(step); })
      .def_property_readonly("clip_factor", &Session::clip_factor)
      .def(
          "norm", [](const Session& s, const Arrays& g) { return s.norm(arrays_of(g)); },
          "gradients"_a, Unlocked())
      .def("bound", &Session::bound, "tensors"_a)
      .def(
          "compress",
          [](Session& s, const Arrays& gradients, const std::vector<std::size_t>& absent,
             std::uintptr_t out, std::size_t room, double scale, std::optional<double> norm) {
            return s.compress(arrays_of(gradients), absent, {.address = out, .size = room}, scale,
                              norm);
          },
          "gradients"_a, "absent"_a, "out"_a, "room"_a, "scale"_a, "norm"_a, Unlocked())
      .def("commit", &Session::commit, "frozen"_a, Unlocked())
      .def("restore", &Session::restore, Unlocked())
      .def(
          "velocity",
          [](Session& s, std::size_t tensor) { return place_of(s.state().velocity(tensor)); },
          "tensor"_a)
      .def(
          "residual",
          [](Session& s, std::size_t tensor) { return place_of(s.state().residual(tensor)); },
          "tensor"_a)
      .def("sent", [](const Session& s) {
        std::vector<std::uint64_t> sent;
        for (const TensorStats& tensor : s.stats()) sent.push_back(tensor.sent);
        return sent;
      });
}

PYBIND11_MODULE(_core, m) {
  m.doc() = "libdgc on raw memory; see the package dgc.";
  m.attr("__version__") = DGC_VERSION;
  translate_errors(m);
  bind_schedule(m);
  bind_session(m);
  m.attr("MESSAGE_OVERHEAD") = kMessageOverhead;
  m.attr("ERROR_CODES") = numbers_of_errors();
  m.def("fail", &fail, "code"_a, "operation"_a, "subject"_a, "problem"_a, "hint"_a = "");
  m.def(
      "first_difference",
      [](const std::vector<std::string>& texts)
          -> std::optional<std::pair<std::size_t, std::string>> {
        const auto difference = first_difference(texts);
        if (!difference) return std::nullopt;
        return std::pair(difference->rank, difference->text());
      },
      "texts"_a);
  m.def("old_ranks_of", &compress::old_ranks_of, "rank"_a, "ranks"_a, "old_ranks"_a);
  m.def("active_target", &active_target);
  m.def("entries_at", &entries_at, "ratio"_a, "elements"_a);
  m.def(
      "frame_bound",
      [](std::uint64_t elements, std::uint64_t entries, const std::string& values,
         const std::string& indices) {
        return frame_bound(elements, entries, parse_value_type(values),
                           parse_index_coding(indices));
      },
      "elements"_a, "entries"_a, "values"_a, "indices"_a);
  m.def("inspect_message", &inspect, "message"_a, kInspectMessage);
  m.def(
      "decode",
      [](std::uintptr_t address, std::size_t size, std::size_t rank, std::uint64_t step,
         std::uint32_t schema) {
        return decode({.address = address, .size = size}, rank, step, schema);
      },
      "address"_a, "size"_a, "rank"_a, "step"_a, "schema"_a);
  m.def(
      "add_messages",
      [](const std::vector<std::pair<std::uintptr_t, std::size_t>>& messages,
         const std::vector<std::tuple<std::size_t, std::uintptr_t, std::size_t>>& targets,
         float alpha, std::uint64_t step, std::uint32_t schema) {
        add_messages(bytes_of(messages), arrays_of(targets), alpha, step, schema);
      },
      "messages"_a, "targets"_a, "alpha"_a, "step"_a, "schema"_a, Unlocked());
  m.def(
      "encode",
      [](const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uintptr_t, std::uintptr_t,
                                      std::uintptr_t, std::size_t, std::string, std::string>>&
             frames,
         std::uint64_t step, std::uint32_t schema, std::uint16_t sender, std::uintptr_t out,
         std::size_t room) {
        std::vector<Selected> list;
        for (const auto& [tensor, elements, indices, values, decoded, count, type, coding] :
             frames) {
          list.push_back({tensor, elements, indices, values, decoded, count, type, coding});
        }
        return encode(list, {.step = step, .schema = schema, .sender = sender},
                      {.address = out, .size = room});
      },
      "frames"_a, "step"_a, "schema"_a, "sender"_a, "out"_a, "room"_a, Unlocked());
  m.def(
      "hash64",
      [](std::uintptr_t address, std::size_t size, std::uint64_t seed) {
        return XXH64(memory_at<const std::byte>(address, size).data(), size, seed);
      },
      "address"_a, "size"_a, "seed"_a, Unlocked());
}

}  // namespace
}  // namespace dgc::python

// The extension dgc._core: libdgc for Python. Everything that may take long runs without the GIL.
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <xxhash.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/difference.h"
#include "bind_member.h"
#include "bind_messages.h"
#include "bind_packed.h"
#include "bind_schedule.h"
#include "compress/option_table.h"
#include "compress/reshard.h"
#include "convert.h"
#include "dgc/error.h"
#include "dgc/exchange.h"
#include "dgc/link.h"
#include "dgc/schedule.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "dgc/wire.h"
#include "exchange/free_ratio.h"
#include "session.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

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

/// Errors of the library become dgc.Error, with their parts as attributes.
void translate_errors(py::module_& m) {
  static PyObject* type = nullptr;
  type = PyErr_NewExceptionWithDoc("dgc.Error", kError, PyExc_RuntimeError, nullptr);
  m.add_object("Error", py::reinterpret_borrow<py::object>(type));
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      py::object instance = py::reinterpret_borrow<py::object>(type)(text_of(error.what()));
      instance.attr("code") = error_name(error.code());
      instance.attr("operation") = text_of(error.operation());
      instance.attr("subject") = text_of(error.subject());
      instance.attr("problem") = text_of(error.problem());
      instance.attr("hint") = text_of(error.hint());
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
CompressOptions options_of(const py::dict& given, const std::string& owner) {
  CompressOptions options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const std::string text = py::isinstance<py::bool_>(value)
                                 ? (value.cast<bool>() ? "true" : "false")
                                 : py::str(value).cast<std::string>();
    try {
      if (set_option(compress_options(), options, name, text)) continue;
    } catch (const Error& error) {
      throw Error(error.code(), owner, fmt::format("{} '{}'", name, text), error.problem(),
                  error.hint());
    }
    throw Error(ErrorCode::invalid_argument, owner, name, "is not an option of compression");
  }
  return options;
}

/// What ratio "auto" may send, of all tensors in one bucket.
double free_ratio_of(const Specs& tensors, const py::dict& options, const std::string& algorithm,
                     int workers, const std::pair<double, double>& link, double compute,
                     double hidden, double least) {
  const std::vector<TensorSpec> model = specs_of(tensors);
  std::vector<std::vector<std::size_t>> buckets(1);
  for (std::size_t t = 0; t < model.size(); ++t) buckets[0].push_back(t);
  const ExchangeOptions exchange{.algorithm = parse_algorithm(algorithm)};
  const Link given{link.first, std::chrono::duration<double>(link.second)};
  return exchange::free_ratio(
      {.model = model,
       .buckets = buckets,
       .compress = options_of(options, "DGCState"),
       .options = exchange,
       .setup = {workers, exchange.dense_transport, exchange::costs_over(given)}},
      {.compute = compute, .hidden = hidden}, least);
}

void bind_session(py::module_& m) {
  py::class_<Session>(m, "Session")
      .def(py::init([](const Specs& tensors, std::uint32_t rank, std::uint32_t workers,
                       const Schedule& schedule, std::uint32_t schema, const py::dict& options,
                       const std::string& owner) {
             CompressOptions all = options_of(options, owner);
             all.schedule = schedule;
             all.schema = schema;
             return std::make_unique<Session>(specs_of(tensors), rank, workers, all);
           }),
           py::kw_only(), "tensors"_a, "rank"_a, "workers"_a, "schedule"_a, "schema"_a, "options"_a,
           "owner"_a = "DGCState")
      .def_property(
          "step", [](Session& s) { return s.state().step(); },
          [](Session& s, std::uint64_t step) { s.state().set_step(step); })
      .def_property_readonly("clip_factor", &Session::clip_factor)
      .def("change_schedule", &Session::change_schedule, "schedule"_a)
      .def(
          "norm", [](const Session& s, const Arrays& g) { return s.norm(arrays_of(g)); },
          "gradients"_a, Unlocked())
      .def(
          "compress",
          [](Session& s, const Arrays& gradients, const Notice& notice, std::uintptr_t out,
             std::size_t room, double scale, std::optional<double> norm) {
            return s.compress(arrays_of(gradients), notice, {.address = out, .size = room}, scale,
                              norm);
          },
          "gradients"_a, "notice"_a, "out"_a, "room"_a, "scale"_a, "norm"_a, Unlocked())
      .def("owner_bounds", &Session::owner_bounds, "tensors"_a, "step"_a)
      .def(
          "compress_for_owners",
          [](Session& s, const Arrays& gradients, const Notice& notice, double scale,
             std::optional<double> norm) {
            std::vector<std::vector<std::byte>> slices;
            {
              const py::gil_scoped_release unlocked;
              slices = s.compress_for_owners(arrays_of(gradients), notice, scale, norm);
            }
            py::list all;
            for (const auto& slice : slices) {
              all.append(bytearray_of(std::span<const std::byte>(slice)));
            }
            return all;
          },
          "gradients"_a, "notice"_a, "scale"_a, "norm"_a)
      .def(
          "choose",
          [](Session& s, const std::vector<std::size_t>& tensors, const Parcels& slices,
             const Notice& notice) {
            std::vector<std::byte> chosen;
            {
              const py::gil_scoped_release unlocked;
              chosen = s.choose(tensors, slices, notice);
            }
            return bytearray_of(std::span<const std::byte>(chosen));
          },
          "tensors"_a, "slices"_a, "notice"_a)
      .def("feed_back", &Session::feed_back, "parcels"_a, Unlocked())
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
  m.def(
      "parse_link",
      [](const std::string& text) {
        const Link link = parse_link("link", text);
        return std::pair(link.bytes_per_second, link.delay.count());
      },
      "text"_a);
  m.def("free_ratio", &free_ratio_of, py::kw_only(), "tensors"_a, "options"_a, "algorithm"_a,
        "workers"_a, "link"_a, "compute"_a, "hidden"_a, "least"_a);
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
  bind_messages(m);
  bind_packed(m);
  bind_member(m);
  m.def(
      "hash64",
      [](std::uintptr_t address, std::size_t size, std::uint64_t seed) {
        return XXH64(memory_at<const std::byte>(address, size).data(), size, seed);
      },
      "address"_a, "size"_a, "seed"_a, Unlocked());
}

}  // namespace
}  // namespace dgc::python

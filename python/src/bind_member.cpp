// hub::Member for Python, which carries the requests (python/dgc/_courier.py). What a member
// computes runs without the GIL; the one call back, for what is saved with the residual, takes it.
#include "bind_member.h"

#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "convert.h"
#include "dgc/error.h"
#include "dgc/version.h"
#include "hub/member.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using hub::Member;

std::span<const std::byte> bytes_in(std::string_view bytes) {
  return std::as_bytes(std::span(bytes));
}

py::bytes bytes_object(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view name_of(hub::Todo todo) {
  switch (todo) {
    case hub::Todo::ask:
      return "ask";
    case hub::Todo::compute:
      return "compute";
    case hub::Todo::evaluate:
      return "evaluate";
    case hub::Todo::end:
      break;
  }
  return "end";
}

/// `facts` is the hub's answer to GET /v1/run.
std::unique_ptr<Member> make_member(std::string_view facts, const Specs& model,
                                    const Specs& buffers, const std::string& folder, int threads) {
  const hub::Packet packet = hub::read_packet(bytes_in(facts));
  hub::require_same_version(packet.head);
  const auto terms = packet.head.find("terms");
  if (terms == packet.head.end()) {
    throw Error(ErrorCode::bad_state, "join", "hub", "names no terms of the run");
  }
  const std::string run = hub::text(packet.head, "run");
  return std::make_unique<Member>(specs_of(model), specs_of(buffers),
                                  hub::MemberOptions{.terms = hub::terms_from(*terms),
                                                     .run = run,
                                                     .folder = hub::residual_folder(folder, run),
                                                     .threads = threads});
}

void contribute(Member& member, const Arrays& gradients, std::uint64_t examples, double loss,
                double seconds, const std::pair<std::uintptr_t, std::size_t>& buffers) {
  hub::Contribution contribution{.examples = examples,
                                 .loss = loss,
                                 .seconds = seconds,
                                 .buffers = memory_at<const float>(buffers.first, buffers.second)};
  for (const Array& array : arrays_of(gradients)) {
    contribution.gradients.push_back({array.tensor, array.values()});
  }
  member.contribute(contribution);
}

py::tuple next_request(Member& member, double rtt) {
  hub::Ask ask;
  {
    const py::gil_scoped_release unlocked;
    ask = member.next_request(rtt);
  }
  return py::make_tuple(ask.method, ask.path, bytes_object(ask.body), ask.waits);
}

/// Called where the member saves: it has no GIL then.
void keep_with_residual(Member& member, std::function<py::bytes()> extra) {
  member.keep_with_residual([extra = std::move(extra)] {
    const py::gil_scoped_acquire locked;
    const auto bytes = extra();
    const auto view = bytes_in(static_cast<std::string_view>(bytes));
    return hub::Bytes(view.begin(), view.end());
  });
}

}  // namespace

void bind_member(py::module_& m) {
  py::class_<Member>(m, "HubMember")
      .def(py::init(&make_member), py::kw_only(), "facts"_a, "model"_a, "buffers"_a, "folder"_a,
           "threads"_a)
      .def("set_data", &Member::set_data, "positions"_a, "data"_a, "evaluates"_a)
      .def("todo", [](const Member& member) { return name_of(member.todo()); })
      .def("next_request", &next_request, "rtt"_a)
      .def(
          "take", [](Member& member, std::string_view answer) { member.take(bytes_in(answer)); },
          "answer"_a, Unlocked())
      .def("leave", &Member::leave)
      .def("save", &Member::save, Unlocked())
      .def("contribute", &contribute, "gradients"_a, "examples"_a, "loss"_a, "seconds"_a,
           "buffers"_a, Unlocked())
      .def("evaluated", &Member::evaluated, "loss"_a, "metrics"_a)
      .def("keep_with_residual", &keep_with_residual, "extra"_a)
      .def("take_saved_extra",
           [](Member& member) -> std::optional<py::bytes> {
             const auto bytes = member.take_saved_extra();
             if (!bytes) return std::nullopt;
             return bytes_object(*bytes);
           })
      .def("went_back",
           [](Member& member)
               -> std::optional<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> {
             const auto lost = member.went_back();
             if (!lost) return std::nullopt;
             return std::tuple(lost->to, lost->messages, lost->examples);
           })
      .def("hub_went_back",
           [](Member& member) -> std::optional<std::pair<std::uint64_t, std::uint64_t>> {
             const auto back = member.hub_went_back();
             if (!back) return std::nullopt;
             return std::pair(back->from, back->to);
           })
      .def("parameters",
           [](Member& member) {
             std::vector<std::pair<std::uintptr_t, std::size_t>> places;
             for (const auto& span : member.replica().parameters()) {
               places.push_back(place_of(span));
             }
             return places;
           })
      .def("buffers",
           [](Member& member) { return place_of(std::span(member.replica().buffers())); })
      .def(
          "hash", [](Member& member) { return member.replica().hash(); }, Unlocked())
      .def_property_readonly("lease",
                             [](const Member& member) {
                               const hub::Lease& lease = member.lease();
                               return std::tuple(lease.sequence, lease.epoch, lease.first,
                                                 lease.count);
                             })
      .def_property_readonly("round", &Member::round)
      .def_property_readonly("sequence", &Member::sequence)
      .def_property_readonly("ratio", &Member::ratio)
      .def_property_readonly("inner_lr", &Member::inner_lr)
      .def_property_readonly("wants_buffers", &Member::wants_buffers)
      .def_property_readonly("is_outstanding", &Member::is_outstanding)
      .def_property_readonly("finished", &Member::finished)
      .def_property_readonly("message_bytes", &Member::message_bytes);
  m.def(
      "read_packet",
      [](std::string_view bytes) { return text_of(hub::read_packet(bytes_in(bytes)).head.dump()); },
      "bytes"_a);
  m.def(
      "write_packet",
      [](const std::string& head) {
        return bytes_object(hub::write_packet(nlohmann::json::parse(head)));
      },
      "head"_a);
  m.def(
      "epoch_order",
      [](std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
        std::vector<std::int64_t> order;
        {
          const py::gil_scoped_release unlocked;
          order = permutation(count, Random{seed, epoch});
        }
        return bytearray_of(std::span<const std::int64_t>(order));
      },
      "count"_a, "seed"_a, "epoch"_a);
}

}  // namespace dgc::python

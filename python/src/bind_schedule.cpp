// dgc.Schedule for Python. Arguments come as they are, because pybind11's own TypeError lists
// signatures in place of a reason.
#include "bind_schedule.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dgc/error.h"
#include "dgc/schedule.h"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dgc::python {
namespace {

using Given = const py::object&;

/// What a user gave, as a T. Throws Error(invalid_argument) where it is none.
template <typename T>
T read(Given value, const char* name, const char* wanted, const char* example) {
  if (!py::isinstance<py::bool_>(value)) {
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {  // said below
    }
  }
  throw Error(ErrorCode::invalid_argument, "schedule", name,
              fmt::format("is {} ({}), but has to be {}", std::string(py::repr(value)),
                          Py_TYPE(value.ptr())->tp_name, wanted),
              fmt::format("for example {}={}", name, example));
}

double ratio(Given value, const char* name) {
  return read<double>(value, name, "a number above 0, 1 at the most", "0.001");
}

std::int64_t steps(Given value, const char* name) {
  return read<std::int64_t>(value, name, "a whole number of steps", "500");
}

Schedule make_stages(Given ratios, Given steps_each, Given final_ratio) {
  return Schedule::stages(
      read<std::vector<double>>(ratios, "ratios", "a list of ratios", "[0.25, 0.05]"),
      steps(steps_each, "steps_each"), ratio(final_ratio, "final_ratio"));
}

Schedule make_ramp(Given first, Given final_ratio, Given length) {
  return Schedule::exponential(ratio(first, "first"), ratio(final_ratio, "final_ratio"),
                               steps(length, "steps"));
}

Schedule parse(Given text, Given steps_per_epoch) {
  return Schedule::parse(read<std::string>(text, "text", "a text", "'0.25,0.001:500'"),
                         steps(steps_per_epoch, "steps_per_epoch"));
}

double ratio_at(const Schedule& schedule, Given step) {
  return schedule.ratio_at(std::max<std::int64_t>(steps(step, "step"), 0));
}

std::string shown(const Schedule& schedule) {
  return fmt::format("<dgc.Schedule: ratio {:g} at step 0, {:g} from step {} on>",
                     schedule.ratio_at(0), schedule.ratio_at(schedule.warmup_steps()),
                     schedule.warmup_steps());
}

// tests/python/test_docs.py runs what stands after >>>.
constexpr const char* kSchedule = R"(Which share of each gradient is sent at which step.

``Schedule(ratio)`` is the same share throughout. Others begin with more:

>>> warm_up = dgc.Schedule.stages([0.25, 0.05], steps_each=500, final_ratio=0.001)
>>> warm_up
<dgc.Schedule: ratio 0.25 at step 0, 0.001 from step 1000 on>
>>> [warm_up.ratio_at(step) for step in (0, 500, 1000)]
[0.25, 0.05, 0.001]
>>> print(warm_up.describe(), end="")
steps 0 to 499: ratio 0.25 (sparsity 75 %)
steps 500 to 999: ratio 0.05 (sparsity 95 %)
steps 1000 and on: ratio 0.001 (sparsity 99.9 %)

The paper's, a ramp that falls by the same factor each step, and the same as texts:

>>> dgc.Schedule.paper(2000).ratio_at(500)
0.0625
>>> dgc.Schedule.exponential(0.25, final_ratio=0.001, steps=2000).warmup_steps
2000
>>> dgc.Schedule.parse("exp:0.25,0.001:2000").warmup_steps
2000
)";

}  // namespace

void bind_schedule(py::module_& m) {
  py::class_<Schedule>(m, "Schedule", kSchedule)
      .def(py::init([](Given value) { return Schedule(ratio(value, "ratio")); }),
           "ratio"_a = Schedule().ratio_at(0))
      .def_static("stages", &make_stages, "ratios"_a, "steps_each"_a, "final_ratio"_a)
      .def_static("paper_stages", &Schedule::paper_stages, "final_ratio"_a = 0.001)
      .def_static(
          "paper", [](Given length) { return Schedule::paper(steps(length, "warmup_steps")); },
          "warmup_steps"_a)
      .def_static("exponential", &make_ramp, "first"_a, "final_ratio"_a, "steps"_a)
      .def_static("parse", &parse, "text"_a, "steps_per_epoch"_a = 0)
      .def("ratio_at", &ratio_at, "step"_a)
      .def(
          "raised",
          [](const Schedule& schedule, Given from, Given least) {
            return schedule.raised(steps(from, "step"), ratio(least, "ratio"));
          },
          "step"_a, "ratio"_a)
      .def_property_readonly("warmup_steps", &Schedule::warmup_steps)
      .def("describe", &Schedule::describe)
      .def("__repr__", &shown);
}

}  // namespace dgc::python

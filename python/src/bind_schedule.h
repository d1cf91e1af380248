// dgc.Schedule.
#pragma once

#include <pybind11/pybind11.h>

namespace dgc::python {

void bind_schedule(pybind11::module_& m);

}  // namespace dgc::python

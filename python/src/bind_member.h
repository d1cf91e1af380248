// A member of a run that a hub holds together, without its network.
#pragma once

#include <pybind11/pybind11.h>

namespace dgc::python {

void bind_member(pybind11::module_& m);

}  // namespace dgc::python

// Messages of frames whose parts were coded elsewhere.
#pragma once

#include <pybind11/pybind11.h>

namespace dgc::python {

void bind_packed(pybind11::module_& m);

}  // namespace dgc::python

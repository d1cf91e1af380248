// Messages: notices, what all ranks sent, and dgc.inspect_message.
#pragma once

#include <pybind11/pybind11.h>

namespace dgc::python {

void bind_messages(pybind11::module_& m);

}  // namespace dgc::python

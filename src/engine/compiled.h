// Which engines this build has; each is defined by X.cpp or no_X.cpp.
#pragma once

namespace dgc::detail {

bool has_gloo() noexcept;
bool has_mpi() noexcept;

}  // namespace dgc::detail

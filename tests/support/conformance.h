// What every engine must do, as one function of a Group: run on threads for local, in forked
// processes for gloo, under mpirun for mpi.
#pragma once

#include "dgc/group.h"

namespace dgc::test {

/// Throws std::runtime_error that says what was wrong. Every rank of a group calls it.
void check_conformance(Group& group);

}  // namespace dgc::test

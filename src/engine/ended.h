// What a call on a dead group throws.
#pragma once

#include "dgc/error.h"

namespace dgc {

/// `cause` with its code and subject, and a text that says when it happened: the call that throws
/// it did nothing wrong.
Error ended_earlier(const Error& cause);

}  // namespace dgc

// Where a rank listens under Gloo, and what Gloo says when that does not work.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "dgc/engines.h"

namespace gloo::transport {
class Device;
}

namespace dgc::detail {

using Device = std::shared_ptr<gloo::transport::Device>;

/// Listens by the options, or by default. Throws Error(invalid_argument) naming the option.
Device make_device(const GlooOptions& options);

/// Names what a loopback address leads to: a machine, and on it a network namespace (a container
/// has one of its own). Processes with different names cannot reach each other by loopback.
std::string loopback_network();

/// Gloo's message without the place in its source, and with its ports as people know them: Gloo
/// prints the bytes in the order of the network.
std::string readable(std::string_view text);

}  // namespace dgc::detail

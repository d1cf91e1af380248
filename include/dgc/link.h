// A network link, as people describe one: so many bytes a second, and a delay.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace dgc {

/// What connects a worker with the others.
struct Link {
  double bytes_per_second = 0.0;           ///< each way, of all its messages together
  std::chrono::duration<double> delay{0};  ///< of a message, one way

  bool operator==(const Link&) const = default;
};

/// "100Mbps,25ms": bandwidth with a unit, a comma, delay with a unit. Throws
/// Error(invalid_argument) that names `option` and shows a form that is right.
Link parse_link(std::string_view option, std::string_view text);
/// "100 Mbps, 25 ms"
std::string link_text(const Link& link);

}  // namespace dgc

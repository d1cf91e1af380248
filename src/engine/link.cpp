#include "dgc/link.h"

#include <fmt/format.h>

#include "base/quantity.h"
#include "dgc/error.h"

namespace dgc {

Link parse_link(std::string_view option, std::string_view text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos || text.find(',', comma + 1) != std::string_view::npos) {
    throw Error(ErrorCode::invalid_argument, "options", fmt::format("{} '{}'", option, text),
                "is not a bandwidth and a delay with a comma between", "as 100Mbps,25ms");
  }
  return {.bytes_per_second = parse_bandwidth(option, text.substr(0, comma)) / 8.0,
          .delay = std::chrono::duration<double>(
              parse_duration(option, text.substr(comma + 1), /*zero=*/true))};
}

std::string link_text(const Link& link) {
  return fmt::format("{}, {}", bandwidth_text(8.0 * link.bytes_per_second),
                     link.delay.count() == 0.0 ? "0 ms" : duration_text(link.delay.count()));
}

}  // namespace dgc

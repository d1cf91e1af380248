// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace dgc {

/// "224,714"
std::string grouped(std::uint64_t value);
/// "640 B", "3.1 kB", "1.35 MB", "2.10 GB"
std::string bytes_text(double bytes);

}  // namespace dgc

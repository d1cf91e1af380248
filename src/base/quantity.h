// Quantities with units, as people write them.
#pragma once

#include <string>
#include <string_view>

namespace dgc {

/// "1Gbps", "100 Mbit/s", "12.5MB/s" in bit/s. Throws Error(invalid_argument) that names `option`
/// and shows a form that is right.
double parse_bandwidth(std::string_view option, std::string_view text);
/// "120ms", "50us", "1.5 s" in seconds; zero only where `zero` says so.
double parse_duration(std::string_view option, std::string_view text, bool zero = false);

/// "40MB", "1.5 GB", "512KiB" in bytes. More than 0.
double parse_bytes(std::string_view option, std::string_view text);

/// "1 Gbps", "100 Mbps"
std::string bandwidth_text(double bits_per_second);
/// "850 us", "12.3 ms", "1.42 s"
std::string duration_text(double seconds);

}  // namespace dgc

// Numbers as people read them. Each gives kNothing for NaN.
#pragma once

#include <string>
#include <string_view>

namespace dgc::report {

/// ASCII, because tables on a terminal count bytes; pages show an en dash.
inline constexpr std::string_view kNothing = "-";

std::string bytes_text(double bytes);      ///< "3.1 kB"
std::string seconds_text(double seconds);  ///< "80.1 s", "12 min 05 s", "3 h 05 min"
std::string count_text(double count);      ///< "224,714"
std::string ratio_text(double ratio);      ///< "533", "41.2", "2.00"
std::string percent_text(double share);    ///< 0.0628 gives "6.3 %"
std::string metric_text(double metric);    ///< "91.20", four digits or more
std::string epochs_text(double epochs);    ///< "4", "2.37"

/// `text` for HTML, inside an element or a quoted attribute. Bytes that are no UTF-8 (in a folder's
/// name) become replacement characters.
std::string escape(std::string_view text);

}  // namespace dgc::report

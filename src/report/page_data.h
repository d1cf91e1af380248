// The data that the page's scripts draw.
#pragma once

#include <span>
#include <string>

#include "report/read_run.h"

namespace dgc::report {

/// Points of one quantity of one series on the page.
inline constexpr std::size_t kMostPoints = 1500;

/// JSON that is safe inside a <script> element: it has no '<'. Curves are thinned to kMostPoints.
std::string page_data(std::span<const Run> runs);

}  // namespace dgc::report

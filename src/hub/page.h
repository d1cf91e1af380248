// The page that shows a run live.
#pragma once

#include <string_view>

namespace dgc::hub {

/// One document that needs nothing else.
std::string_view status_page();

}  // namespace dgc::hub

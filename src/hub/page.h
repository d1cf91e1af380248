// The page that shows a run live.
#pragma once

#include <string>

namespace dgc::hub {

struct StatusPage {
  std::string html;  ///< one document that needs nothing else
  /// Its Content-Security-Policy: this style and these scripts, and questions to the hub alone.
  std::string policy;
};
/// Always the same.
const StatusPage& status_page();

}  // namespace dgc::hub

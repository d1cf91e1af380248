#include "hub/page.h"

namespace dgc::hub {

std::string_view status_page() { return "<!doctype html><title>dgc</title>"; }

}  // namespace dgc::hub

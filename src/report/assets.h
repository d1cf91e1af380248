// What is the report's own beside data; the definitions are written by web/embed.cmake.
#pragma once

#include <string_view>

namespace dgc::report::asset {

extern const std::string_view page_css;
extern const std::string_view page_js;

}  // namespace dgc::report::asset

// What the page is made of besides data; the definitions are written by embed.cmake.
#pragma once

#include <string_view>

namespace dgc::report::asset {

extern const std::string_view page_css;
extern const std::string_view chart_js;
extern const std::string_view page_js;

}  // namespace dgc::report::asset

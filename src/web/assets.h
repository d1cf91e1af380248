// What all pages share; the definitions are written by embed.cmake.
#pragma once

#include <string_view>

namespace dgc::web::asset {

extern const std::string_view base_css;
extern const std::string_view chart_js;

}  // namespace dgc::web::asset

// What the page is made of; the definitions are written by web/embed.cmake.
#pragma once

#include <string_view>

namespace dgc::hub::asset {

extern const std::string_view page_html;
extern const std::string_view page_css;
extern const std::string_view page_js;

}  // namespace dgc::hub::asset

#include "hub/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>

#include "dgc/error.h"
#include "hub/assets.h"
#include "web/assets.h"

namespace dgc::hub {
namespace {

/// As a policy names a script or a style that stands in the document.
std::string named_by_hash(const std::string& text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64;
  EVP_EncodeBlock(base64.data(), hash.data(), static_cast<int>(hash.size()));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

void put(std::string& html, std::string_view place, const std::string& text) {
  const std::size_t at = html.find(place);
  if (at == std::string::npos) {
    throw Error(ErrorCode::internal, "hub", "page", fmt::format("has no {}", place));
  }
  html.replace(at, place.size(), text);
}

StatusPage make_page() {
  std::string style(web::asset::base_css);
  style += asset::page_css;
  std::string script(web::asset::chart_js);
  script += asset::page_js;
  StatusPage page{.html = std::string(asset::page_html), .policy = {}};
  put(page.html, "<!--style-->", style);
  put(page.html, "<!--script-->", script);
  // Trusted types: even a mistake in the script cannot make HTML of what strangers say.
  page.policy = fmt::format(
      "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      named_by_hash(style), named_by_hash(script));
  return page;
}

}  // namespace

const StatusPage& status_page() {
  static const StatusPage page = make_page();
  return page;
}

}  // namespace dgc::hub

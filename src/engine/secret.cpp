#include "engine/secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdint>

#include "base/environment.h"
#include "dgc/error.h"
#include "engine/bytes.h"

namespace dgc::detail {
namespace {

void fill_random(std::span<unsigned char> bytes) {
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1) return;
  throw Error(ErrorCode::internal, "rendezvous", "random numbers", "the system gives none");
}

}  // namespace

Mac mac(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> text;
  for (const auto part : parts) {
    append_number(text, std::uint64_t{part.size()});
    append(text, part);
  }
  // OpenSSL takes a null key for "the one of before".
  static constexpr unsigned char kNoKey = 0;
  const void* const start = key.empty() ? static_cast<const void*>(&kNoKey) : key.data();
  Mac code;
  auto* const out = reinterpret_cast<unsigned char*>(code.data());
  unsigned length = 0;
  if (::HMAC(::EVP_sha256(), start, static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), out,
             &length) == nullptr ||
      length != code.size()) {
    throw Error(ErrorCode::internal, "rendezvous", "HMAC-SHA256", "OpenSSL does not have it");
  }
  return code;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce fresh_nonce() {
  Nonce nonce;
  fill_random({reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()});
  return nonce;
}

std::string new_secret() {
  std::array<unsigned char, 16> bytes;
  fill_random(bytes);
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string secret_or_environment(const std::string& given) {
  return given.empty() ? variable("DGC_SECRET").value_or("") : given;
}

}  // namespace dgc::detail
